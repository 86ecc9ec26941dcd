"""The single failure inside the exception groups of task groups."""

from __future__ import annotations


def only_failure(error: BaseException) -> BaseException:
    """Return the one failure that nested groups hold, or the group that holds several.

    >>> only_failure(ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError(1)])]))
    ValueError(1)
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

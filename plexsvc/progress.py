"""Progress of this process: a count that grows while what it was told to do gets on.

A rank or an instance is one process, and its operations run one at a time, so the count is the
process's.
"""

from __future__ import annotations

_steps = 0


def advance() -> None:
    """Note that a micro-batch, a tensor, a step or a piece of what is read is done."""
    global _steps  # noqa: PLW0603 - see above
    _steps += 1


def count() -> int:
    """Return how often that was."""
    return _steps

"""Progress of this rank: a count that grows while its operation gets on.

One process is one rank, and its operations run one at a time, so the count is the process's.
"""

from __future__ import annotations

_steps = 0


def advance() -> None:
    """Note that a micro-batch, a tensor or a step is done."""
    global _steps  # noqa: PLW0603 - see above
    _steps += 1


def count() -> int:
    """Return how often that was."""
    return _steps

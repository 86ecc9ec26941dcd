"""Logging: a constant phrase and fields, one line each, to stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable


class Log:
    """A named logger whose calls take fields: `log.info("operation started", operation_id=op)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, phrase: str, **fields: object) -> None:
        """Log at debug level."""
        self._emit(logging.DEBUG, phrase, fields)

    def info(self, phrase: str, **fields: object) -> None:
        """Log at info level."""
        self._emit(logging.INFO, phrase, fields)

    def warning(self, phrase: str, **fields: object) -> None:
        """Log at warning level."""
        self._emit(logging.WARNING, phrase, fields)

    def error(self, phrase: str, **fields: object) -> None:
        """Log at error level, with the current exception if there is one."""
        self._emit(logging.ERROR, phrase, fields, exc_info=sys.exc_info()[0] is not None)

    def _emit(
        self, level: int, phrase: str, fields: dict[str, object], *, exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            text = " ".join(f"{name}={_show(value)}" for name, value in fields.items())
            self._logger.log(level, "%s %s", phrase, text, exc_info=exc_info)


class Quota:
    """Lines that one cause may write in a window of time: what strangers send must not fill a log.

    >>> quota = Quota(lines=1, window_s=10, clock=iter([0, 1, 2, 11]).__next__)
    >>> [quota.take() for _ in range(4)]
    [0, None, None, 2]
    """

    def __init__(
        self, *, lines: int, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines, self._window_s, self._clock = lines, window_s, clock
        self._ends = 0.0
        self._left = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many lines were left out before this one; None to leave this one out."""
        now = self._clock()
        if now >= self._ends:
            self._ends, self._left = now + self._window_s, self._lines
        if not self._left:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _show(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[:8]
    text = str(value)
    return repr(text) if " " in text else text


def setup(*, level: str = "INFO") -> None:
    """Send this process's logs to stderr with time, level and logger."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s.%(msecs)03d %(levelname).1s %(name)s %(message)s",
        datefmt="%H:%M:%S",
    )

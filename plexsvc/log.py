"""Logging: a constant phrase and fields, one line each, to stderr."""

from __future__ import annotations

import logging
import sys


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

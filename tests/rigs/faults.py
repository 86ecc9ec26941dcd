"""Faults at every call: collaborators that fail once, before or after one of their calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from plexsvc.errors import ErrorCode, PlexError

ERRORS = {
    "retryable": lambda: PlexError(ErrorCode.STAGING_FULL, "others' batches wait there"),
    "final": lambda: PlexError(ErrorCode.BAD_REQUEST, "cannot be meant"),
    "memory": lambda: MemoryError("no more"),
    "file": lambda: OSError(28, "no space left"),
    "bug": lambda: RuntimeError("out of luck"),
}


class Faults:
    """Counts calls of collaborators, and raises `error` before or after one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_armed = False
        self.at = -1
        self.is_after = False
        self.error: Callable[[], Exception] = RuntimeError

    def arm(self, at: int = -1, *, is_after: bool = False, error: str = "bug") -> None:
        self.calls, self.is_armed = [], True
        self.at, self.is_after, self.error = at, is_after, ERRORS[error]

    @property
    def lost_its_room(self) -> bool:
        """Whether room was made and not told of: the state client itself gives that back."""
        return self.is_after and self.calls[self.at : self.at + 1] == ["create_staged"]

    def around(self, name: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if not self.is_armed:
            return call(*args, **named)
        self.calls.append(name)
        is_here = len(self.calls) - 1 == self.at
        if is_here and not self.is_after:
            raise self.error()
        found = call(*args, **named)
        if is_here:
            raise self.error()
        return found

    async def awaited(self, name: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.around(name, _nothing) if not self.is_after else None
        found = await call(*args, **named)
        self.around(name, _nothing) if self.is_after else None
        return found

    def over(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with faults."""
        around = self.awaited if inspect.iscoroutinefunction(call) else self.around
        return functools.partial(around, name, call)


def _nothing() -> None:
    """Stand for the call before or after which an awaited one fails."""


class FaultyProxy:
    """Passes everything on to `of`, calls through `faults`; those of its `parts`, too."""

    def __init__(self, of: object, faults: Faults, *, parts: Collection[str] = ()) -> None:
        self._of = of
        self._faults = faults
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name in self._parts:
            return FaultyProxy(found, self._faults)
        return self._faults.over(name, found) if callable(found) else found

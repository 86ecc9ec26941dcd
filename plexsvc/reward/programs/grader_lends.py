"""Loans of a grader to a sample: uses of what it is handed, and the files that it is named.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib
import operator
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

LENT: Final = frozenset(
    {"call", "getattr", "eq", "lt", "le", "gt", "ge", "getitem", "contains", "setitem", "delitem"}
    | {"len", "iter", "next", "str", "repr", "hash", "bool", "int", "float", "abs", "neg"}
    | {"add", "sub", "mul", "truediv", "floordiv", "mod", "setattr", "delattr", "enter", "exit"}
    | {"await"}
)
"""What the sample may do with what it was handed."""

MAX_PATH: Final = 512


def used(what: str, owner: Any, *others: Any) -> Any:
    """Return what comes of a use of something that was lent."""
    match what:
        case "call":
            return owner(*others[0], **others[1])
        case "getattr":
            return public(owner, str(others[0]))
        case "setattr" | "delattr":
            return getattr(builtins, what)(settable(owner, str(others[0])), *others)
        case "enter":
            return type(owner).__enter__(owner)
        case "exit":
            return type(owner).__exit__(owner, *others)
        case "await":
            return awaited_apart(owner)
        case _:
            return (getattr(operator, what, None) or getattr(builtins, what))(owner, *others)


def awaited_apart(awaitable: Any) -> Any:
    """Await something of the tests beside the loop that runs, which waits for the sample."""

    async def awaited() -> Any:
        return await awaitable

    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(awaited())
    finally:
        loop.close()
        asyncio._set_running_loop(running)


def known(module: str, name: str) -> type[BaseException]:
    """Return a class of exceptions of the standard library.

    By those of `unittest` a test says that it is skipped, or goes on: the sample says neither.
    """
    top = module.partition(".")[0]
    if top == "unittest":
        return Exception
    found = getattr(importlib.import_module(module), name, None)
    is_known = top in sys.stdlib_module_names
    if is_known and isinstance(found, type) and issubclass(found, BaseException):
        return found
    raise ValueError(f"{module}.{name} is no exception of Python")


def public(lent: object, name: str) -> Any:
    """Return an attribute of what a class of Python made: those of functions and frames tell all.

    Raises:
        AttributeError: for every other.
    """
    return getattr(settable(lent, name), name)


def settable(lent: object, name: str) -> Any:
    """Return what was lent, if the sample may read and set such an attribute of it.

    Raises:
        AttributeError: if not.
    """
    is_counting = isinstance(lent, mock.NonCallableMock) and hasattr(mock.NonCallableMock, name)
    module = type(lent).__module__
    is_hidden = name.startswith("_") or module in {"builtins", "types"} or "pytest" in module
    if is_hidden or is_counting:  # a mock counts what it was asked: not by the sample's leave
        raise AttributeError(f"{name} of a {type(lent).__name__} is not lent")
    return lent


class NamedFiles:
    """Files that arguments name: a call takes them to the sample, its answer brings them back."""

    def __init__(self, do: Callable[..., Any]) -> None:
        self._do = do
        self.shared = ""
        """Directory below which files come back."""
        self._roots: dict[str, None] = {}
        """Paths below it that arguments named."""
        self._known: dict[str, bytes | None] = {}
        """What is at and below them, as both ends know it."""

    def tell(self, values: list[Any], *, cwd: str) -> None:
        """Send what the arguments of a call name, where it is not there as it is."""
        if self.shared:
            self._roots |= dict.fromkeys([*self._paths(values), *([cwd] if cwd else [])])
        data = {} if self._roots else data_files(values)
        now = files_below(list(self._roots))
        changed = {path: one for path, one in now.items() if self._known.get(path, 0) != one}
        gone = [path for path in self._known if path not in now]
        if changed or gone or data:
            self._do("put", changed | data, gone)
        self._known = now

    def fetch(self) -> None:
        """Write what the sample left at the paths that were named."""
        if self._roots:
            write_back(self._do("get", list(self._roots)), list(self._roots), before=self._known)
            self._known = files_below(list(self._roots))

    def _paths(self, values: list[Any]) -> Iterator[str]:
        for value in values:
            if isinstance(value, str | pathlib.PurePath) and str(value).startswith(self.shared):
                yield str(value)
            elif isinstance(value, list | tuple | set):
                yield from self._paths(list(value))
            elif isinstance(value, dict):
                yield from self._paths([*value.values()])


def data_files(values: list[Any]) -> dict[str, bytes | None]:
    """Return the files of the tree that arguments name, but for Python's."""
    found: dict[str, bytes | None] = {}
    for value in values:
        if not isinstance(value, str | pathlib.PurePath) or not 0 < len(str(value)) < MAX_PATH:
            continue
        place = pathlib.Path(value)
        with contextlib.suppress(OSError, ValueError):
            is_inside = place.resolve().is_relative_to(pathlib.Path.cwd())
            if is_inside and place.suffix not in {".py", ".pyc"} and place.is_file():
                found[str(value)] = place.read_bytes()
    return found


def files_below(roots: list[str]) -> dict[str, bytes | None]:
    """Return the files at and below some paths; None is a directory."""
    found: dict[str, bytes | None] = {}
    for root in map(pathlib.Path, roots):
        if not root.exists():
            found[str(root.parent)] = None
        for place in [root, *sorted(root.rglob("*"))] if root.exists() else []:
            found[str(place)] = None if place.is_dir() else place.read_bytes()
    return found


def write_back(files: Any, roots: list[str], *, before: Mapping[str, object]) -> None:
    """Write the files that the sample left where it was told, and remove what it removed."""
    for path, data in files.items():
        place = pathlib.Path(os.path.normpath(path))
        is_asked = any(place.is_relative_to(root) for root in roots)
        if not is_asked or not isinstance(data, bytes | None):
            continue
        (place if data is None else place.parent).mkdir(parents=True, exist_ok=True)
        if data is not None and before.get(path) != data:
            place.write_bytes(data)
    for path in sorted(before.keys() - files.keys(), reverse=True):
        if any(pathlib.Path(path).is_relative_to(root) for root in roots):
            with contextlib.suppress(OSError):
                (pathlib.Path.rmdir if before[path] is None else pathlib.Path.unlink)(
                    pathlib.Path(path)
                )

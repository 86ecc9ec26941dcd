"""Objects of a sample as a grader sees them: plain data is here, all else stays in the sample.

The grader's end of the line to the sample's process (`answering.py`). Of a test only the arguments
of calls go there: names, attributes, what is called with which arguments, indices. What is expected
does not, because every comparison with plain data, and every operation on it, is the grader's own:

- An object of the sample equals plain data only where its class is below a plain one (a named
  tuple, a list): then it is a plain copy here, with the sample's methods beside it. One below a
  class of Python's that wraps plain data (`UserList`, `ChainMap`) stays there, and equals a copy.
- Two of its objects are compared by its own method. An operator of an object takes plain data as an
  argument only if the tests name its class, `Vector` or `_Node`, and only if the result is an
  object of the sample's again: an object that nobody asked for is given nothing, and no difference
  to what is expected is the sample's to say. So the result is no number either, unless the tests
  made the object by calling its class.
- `in` looks through what an object yields, unless the tests made it.

A class of the sample is a class here, of the same name and bases, whose attributes are asked for in
the sample. So a test may define a class below it: the sample gets one, too, whose methods are those
of the test, and `super()` finds what the class here has of the sample's.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import dataclasses
import functools
import importlib
import inspect
import logging
import operator
import os
import pathlib
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FunctionType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

if TYPE_CHECKING:
    from plexsvc.reward.programs import talking
else:
    import talking

OWN: Final = frozenset(
    {"_line", "_number", "_name", "_far_line", "_far_number", "_is_mine", "_is_far", "mro"}
)
HIDDEN: Final = ("_pytest", "__array", "__wrapped__", "__test__", "_ipython", "__mro_entries__")
"""Attributes that libraries look for, which the sample's objects do not have."""

_UNARY: Final = ("neg", "pos", "invert")
_BINARY: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
_IN_PLACE: Final = ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor")
_ORDER: Final = ("lt", "le", "gt", "ge")
_OF_ITSELF: Final = (
    *("len", "str", "repr", "abs", "int", "float", "complex", "hash", "reversed", "index"),
    "bytes",
)
_LENT: Final = frozenset(
    {"call", "getattr", "eq", "lt", "le", "gt", "ge", "getitem", "contains", "setitem", "delitem"}
    | {"len", "iter", "next", "str", "repr", "hash", "bool", "int", "float", "abs", "neg"}
    | {"add", "sub", "mul", "truediv", "floordiv", "mod", "setattr", "delattr", "enter", "exit"}
    | {"await"}
)
"""What the sample may do with what it was handed."""

MAX_KEPT: Final = 64
"""Containers that were arguments and are followed."""
MAX_PATH: Final = 512
UNTOLD: Final = frozenset(
    {"load", "environ", "put", "get", "patch", "seed", "setattr", "delattr", "subclass"}
)
"""Questions whose answers say nothing of what the sample computes."""
SUPER: Final = frozenset({"__init__", "__str__", "__repr__", "__call__", "__enter__", "__exit__"})
"""Methods of Python's that classes of tests ask for by `super()`."""
BASES: Final = frozenset({int, float, str, bytes, tuple, list, dict, set, frozenset})
"""Classes whose objects are plain data, below which the sample may have some."""


class Remote:  # noqa: PLW1641 - see below
    """An object of the sample. Its class here has the name and the bases of its class there."""

    __slots__ = ("_line", "_name", "_number")
    _line: Grader
    _number: int
    _name: str

    def __call__(self, *args: object, **named: object) -> Any:
        return self._line.call(self, args, named)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in OWN:
            return object.__getattribute__(self, name)
        return self.__getattr__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(HIDDEN) or name in OWN:
            raise AttributeError(name)
        if name == "__dataclass_fields__":
            return getattr(type(self), name)
        return self._line.do("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._line.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._line.do("delattr", self, name)

    @property
    def __name__(self) -> str:
        return self._name or str(type(self).__name__)

    @property
    def __doc__(self) -> Any:  # type: ignore[override] # that of the sample's
        return self._line.do("getattr", self, "__doc__")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return self._line.do("operate", "vars", self)

    def __dir__(self) -> list[str]:
        return list(self._line.do("operate", "dir", self))

    def __copy__(self) -> Any:
        return self._line.do("copy", self)

    def __deepcopy__(self, _: object) -> Any:
        return self._line.do("deepcopy", self)

    def __reduce_ex__(self, _: object) -> Any:
        return _unpickled, (self._line.do("pickle", self),)

    def __eq__(self, other: object) -> Any:
        there = number_of(other)
        if there is None:
            held = self._line.do("plain", self)
            return held if held is NotImplemented else held == _plain(other)
        return there == self._number or bool(self._line.do("eq", self, other))

    def __ne__(self, other: object) -> Any:
        equal: Any = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __bool__(self) -> bool:
        return bool(self._line.number_from("bool", self))

    def __iter__(self) -> Any:
        return Iterating(self._line.do("operate", "iter", self))

    def __next__(self) -> Any:
        return self._line.do("operate", "next", self)

    def __contains__(self, value: object) -> bool:
        if self._line.is_made(self):
            return bool(self._line.do("operate", "contains", self, value))
        return any(one is value or one == value for one in self)

    def __getitem__(self, key: object) -> Any:
        return self._line.do("operate", "getitem", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self._line.do("operate", "setitem", self, key, value)

    def __delitem__(self, key: object) -> None:
        self._line.do("operate", "delitem", self, key)

    def __format__(self, form: str) -> str:
        return str(self._line.do("operate", "format", self, form))

    def __round__(self, *digits: int) -> Any:
        return self._line.number_from("round", self, *digits)

    def __divmod__(self, other: object) -> Any:
        return self._line.binary("divmod", self, other)

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (self._line.do("getattr", self, "__origin__"),)  # Box[int]

    def __enter__(self) -> Any:
        return self._line.do("getattr", self, "__enter__")()

    def __exit__(self, kind: Any, error: Any, _: object) -> Any:
        leave = self._line.do("getattr", self, "__exit__")
        told = (None, None) if error is None else (kind, error)
        return leave(*told, None)


class AsyncRemote(Remote):
    """An object of the sample whose class says how it is awaited, iterated over or entered."""

    __slots__ = ()

    def __await__(self) -> Iterator[Any]:
        awaiting: Iterator[Any] = self._line.coroutine(self).__await__()
        return awaiting

    async def __aenter__(self) -> Any:
        return await self._line.do("getattr", self, "__aenter__")()

    async def __aexit__(self, kind: Any, error: Any, _: object) -> Any:
        told = (None, None) if error is None else (kind, error)
        return await self._line.do("getattr", self, "__aexit__")(*told, None)

    def __aiter__(self) -> Any:
        return AsyncIterating(self._line.do("getattr", self, "__aiter__")())


class FunctionRemote(Remote):
    """A function of the sample, which binds as one."""

    __slots__ = ()

    @property
    def __signature__(self) -> inspect.Signature:
        return self._line.signature(self)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class Iterating:
    """Iterates over what the sample yields, one by one."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> Any:
        return next(self._remote)


class AsyncIterating:
    """The same, asynchronously."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __aiter__(self) -> AsyncIterating:
        return self

    async def __anext__(self) -> Any:
        return self._remote._line.do("anext", self._remote)


def _of_itself(name: str) -> Callable[[Remote], Any]:
    return lambda self: self._line.number_from(name, self)


def _binary(name: str) -> Callable[[Remote, object], Any]:
    return lambda self, other: self._line.binary(name, self, other)


def _reflected(name: str) -> Callable[[Remote, object], Any]:
    return lambda self, other: self._line.binary(name, other, self)


def _ordered(name: str) -> Callable[[Remote, object], Any]:
    return lambda self, other: (
        NotImplemented if number_of(other) is None else self._line.do("operate", name, self, other)
    )


del Remote.__annotations__  # which the sample's functions have
for _kind in (AsyncRemote, FunctionRemote):
    _kind.__doc__ = vars(Remote)["__doc__"]  # type: ignore[method-assign, index, unused-ignore]
for _name in (*_OF_ITSELF, *_UNARY):
    setattr(Remote, f"__{_name}__", _of_itself(_name))
for _name in _BINARY:
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.strip('_')}__", _reflected(_name))
for _name in _IN_PLACE:
    setattr(Remote, f"__{_name}__", _binary(_name))
for _name in _ORDER:
    setattr(Remote, f"__{_name}__", _ordered(_name))


class RemoteType(type):
    """A class of the sample, or one of the tests below it, which the sample knows, too."""

    _far_line: Grader
    _far_number: int
    _is_mine: bool

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **named: object
    ) -> RemoteType:
        """Make a class of the tests, and one in the sample."""
        far = [base for base in bases if isinstance(base, RemoteType)]
        line = far[0]._far_line
        is_plain = not issubclass(far[0], Remote)
        slots = {} if is_plain else {"__slots__": ()}
        made = type.__new__(
            cls, name, bases, {**body, **slots, "_is_mine": True, "_far_line": line}
        )
        parts = {}
        for kind in reversed(made.__mro__):
            if not isinstance(kind, RemoteType) or kind._is_mine:
                parts.update(_parts_of(kind))
        number = line.do("subclass", far, name, parts, named)
        type.__setattr__(made, "_far_number", number)
        line.kinds[number] = made
        return made

    def __init__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: object
    ) -> None:
        """Take the keywords of a class statement, which are the sample's."""
        super().__init__(name, bases, body)

    def __call__(cls, *args: object, **named: object) -> Any:
        return cls._far_line.call(cls, args, named)

    def __getattribute__(cls, name: str) -> Any:
        if name.startswith("__") or name in OWN:
            return type.__getattribute__(cls, name)
        return cls._far_line.do("getattr", cls, name)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(HIDDEN) or name in OWN:
            raise AttributeError(name)
        if name == "__dataclass_fields__":
            names = list(cls._far_line.do("getattr", cls, name))
            return dataclasses.make_dataclass(cls.__name__, names).__dataclass_fields__  # type: ignore[attr-defined]
        if name == "__signature__":
            return cls._far_line.signature(cls)
        return cls._far_line.do("getattr", cls, name)

    def __setattr__(cls, name: str, value: object) -> None:
        is_mine = cls._is_mine and name.startswith("__")
        if is_mine or name in {"__doc__", "__module__"}:
            type.__setattr__(cls, name, value)
        if name == "__init__" or not is_mine:
            cls._far_line.do("setattr", cls, name, value)

    def __delattr__(cls, name: str) -> None:
        cls._far_line.do("delattr", cls, name)

    @property  # type: ignore[misc]
    def __dict__(cls) -> Any:  # type: ignore[override]
        return type.__dict__["__dict__"].__get__(cls) if cls._is_mine else {}

    def __dir__(cls) -> list[str]:
        return list(cls._far_line.do("operate", "dir", cls))

    def __instancecheck__(cls, instance: object) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return number_of(instance) is not None and bool(
            cls._far_line.do("isinstance", instance, cls)
        )

    def __subclasscheck__(cls, other: Any) -> bool:
        if type.__subclasscheck__(cls, other):
            return True
        return number_of(other) is not None and bool(cls._far_line.do("issubclass", other, cls))

    def __iter__(cls) -> Any:
        return Iterating(cls._far_line.do("operate", "iter", cls))

    def __len__(cls) -> int:
        return int(cls._far_line.do("operate", "len", cls))

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: object) -> Any:
        return cls._far_line.do("operate", "getitem", cls, key)

    def __contains__(cls, value: object) -> bool:
        return any(one is value or one == value for one in cls)


def _parts_of(kind: type) -> dict[str, Any]:
    """Return what a class of the tests defines: kinds, and functions or values."""
    found: dict[str, Any] = {}
    for name, value in type.__dict__["__dict__"].__get__(kind).items():
        if name in _NOT_TOLD or name in OWN or kind is object or kind.__module__ in _MACHINERY:
            continue
        if isinstance(value, property):
            found[name] = ("property", value.fget, value.fset)
        elif isinstance(value, classmethod | staticmethod):
            found[name] = (type(value).__name__, value.__func__)
        else:
            found[name] = ("function" if isinstance(value, FunctionType) else "value", value)
    return found


_NOT_TOLD: Final = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__"}
    | {"__annotations__", "__classcell__", "__firstlineno__", "__static_attributes__"}
    | {"__orig_bases__", "__parameters__", "__test__", "__hash__"}
)
_MACHINERY: Final = frozenset({"builtins", "abc", "typing", "remote"})


def _unpickled(data: bytes) -> Any:
    """Return an object of the sample that was pickled there."""
    return _LINES[0].do("unpickle", data)


_LINES: Final[list[Grader]] = []


def number_of(value: object) -> int | None:
    """Return the number of an object of the sample; None for any other."""
    if isinstance(value, Remote):
        return value._number
    if isinstance(value, RemoteType):
        return value._far_number
    found = vars(value) if getattr(type(value), "_is_far", False) else {}
    number = found.get("_number")
    return number if isinstance(number, int) else None


def _plain(value: Any) -> Any:
    """Return what a container of the tests holds that compares with its own kind only."""
    return vars(value) if type(value) is SimpleNamespace else value


def _mirror(
    line: Grader, number: int, name: str, doc: object, bases: list[Any], members: dict[str, str]
) -> type:
    """Return a class for objects of a class of the sample."""
    body: dict[str, Any] = {
        "__slots__": (),
        "__test__": False,
        "__doc__": doc,
        "__module__": line.module_name,
        "_far_line": line,
        "_far_number": number,
        "_is_mine": False,
    }
    made: Any = type.__new__(RemoteType, name, tuple(bases), body)
    for member, kind in members.items():  # no operator: they have rules of their own
        if member not in OWN and (member in SUPER or not member.startswith("__")):
            type.__setattr__(made, member, _member(line, made, member, kind))
    return made  # type: ignore[no-any-return]


def _member(line: Grader, owner: Any, name: str, kind: str) -> Any:
    """Return what `super()` finds of a class of the sample."""

    def call(self: Any, *args: object, **named: object) -> Any:
        return line.call(line.do("member", owner, name), (self, *args), named)

    match kind:
        case "property":
            return property(lambda self: line.do("get_property", owner, name, self))
        case "classmethod":
            return classmethod(
                lambda cls, *args, **named: line.call(
                    line.do("member", owner, name, cls), args, named
                )
            )
        case "staticmethod":
            return staticmethod(
                lambda *args, **named: line.call(line.do("member", owner, name), args, named)
            )
        case _:
            return call


def _copy_class(base: type, name: str, fields: list[str], line: Grader, number: int) -> type:
    """Return a class of plain copies that have the sample's methods beside."""

    def attribute(self: Any, name: str) -> Any:
        if name.startswith(HIDDEN) or name in OWN or (name.startswith("__") and name != "__name__"):
            raise AttributeError(name)
        return line.do("getattr", self, name)

    def assign(self: Any, name: str, value: object) -> None:
        line.do("setattr", self, name, value)

    body: dict[str, Any] = {
        "__getattr__": attribute,
        "__setattr__": assign,
        "_is_far": True,
        "_line": line,
        "_far_line": line,
        "_far_number": number,
        "_is_mine": False,
    }
    if base in {list, dict, set}:
        for method in vars(base):  # what changes it is done in the sample, which tells its contents
            if not method.startswith("__"):
                body[method] = _method(method)
        for method in ("setitem", "delitem", "iadd", "ior"):
            if hasattr(base, f"__{method}__"):
                body[f"__{method}__"] = _operation(method)
    if base is dict and number >= 0:
        body["__missing__"] = _operation("getitem")
    body.update({name: property(operator.itemgetter(at)) for at, name in enumerate(fields)})
    if fields:
        body["_fields"] = tuple(fields)
        body["_asdict"] = lambda self: dict(zip(fields, self, strict=False))
    body["__copy__"] = lambda self: line.do("copy", self)
    body["__deepcopy__"] = lambda self, _: line.do("deepcopy", self)
    body["__repr__"] = body["__str__"] = _text
    body["__hash__"] = base.__hash__
    return type.__new__(RemoteType if number >= 0 else type, name, (base,), body)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **named: self._line.do("getattr", self, name)(*args, **named)


def _operation(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._line.do("operate", name, self, *args)


def _text(self: Any) -> str:
    return str(self._line.do("operate", "str", self))


class Kept:
    """An argument that the sample may keep and change later."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Grader(talking.Line):
    """The grader's end of the line."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.asked = 0
        """Questions so far."""
        self.told = 0
        """Answers of these that were plain data."""
        self.shared = ""
        """Directory below which files that an argument names go to the sample and come back."""
        self.spelt: set[str] | None = None
        """Names of the sample that the texts of the tests have, if they can have others."""
        self.kinds: dict[int, type] = {}
        """Classes of the sample, and those of the tests below them."""
        self.module_name = "solution"
        self._lent: list[Any] = []
        self._lent_numbers: dict[int, int] = {}
        self._far: dict[int, Any] = {}
        self._named: set[int] = set()
        """Classes that the tests name."""
        self._aliased: set[int] = set()
        """Classes that have another name, too, which looks like that of a function."""
        self._made: set[int] = set()
        """Objects that the last call which returned them was one of their class."""
        self._distances: set[int] = set()
        """What operators with plain data gave of other objects."""
        self._exceptions: dict[int, type[BaseException]] = {}
        self._copies: dict[type, type] = {}
        self._arguments: OrderedDict[int, Any] = OrderedDict()
        """Containers that were arguments lately: the sample may have kept them."""
        self._module: Any = None
        self._environ: dict[str, str] = {}
        self._cwd = ""
        self._roots: dict[str, None] = {}
        """Paths that arguments named."""
        self._files: dict[str, bytes | None] = {}
        """What is at and below them, as both ends know it."""
        self._lock = threading.RLock()
        _LINES.append(self)

    def load(self, path: str, name: str, module: Any) -> list[str]:
        """Have the sample's file be run; return the names that it defines."""
        self._module, self.module_name = module, name
        return list(self.do("load", path, name, dict(os.environ)))  # noqa: TID251 - the tests'

    def name(self, name: str) -> Any:
        """Return what a name of the sample stands for; a class is one that the tests name."""
        return self.do("name", name)

    def _note_name(self, name: str, found: object) -> None:
        if isinstance(found, RemoteType):
            is_spelt = self.spelt is None or name in self.spelt
            if not name.lstrip("_")[:1].isupper():
                self._aliased.add(found._far_number)
            elif is_spelt:
                self._named.add(found._far_number)

    def do(self, what: str, *args: object) -> Any:
        """Return what the sample answers; raise what it raised."""
        with self._lock:
            self.asked += 1
            packed = [self.pack(one) for one in args]
            (kind, value), printed, news = self._parts(self.ask(what, *packed))
            for stream, text in zip((sys.stdout, sys.stderr), printed, strict=True):
                if text:
                    stream.write(str(text))
            for number, base in news:
                self._renew(number, base)
            if kind == "raised":
                raise self.unpack(value)
            if what == "call" and isinstance(value, list) and value[:1] == ["argument"]:
                return args[1][value[1]].value  # type: ignore[index] # the list of arguments
            found = self.unpack(value)
            is_plain = number_of(found) is None or isinstance(found, tuple(BASES))
            is_plain = is_plain and found is not NotImplemented
            self.told += is_plain and what not in UNTOLD
            if what in {"name", "getattr"}:
                self._note_name(str(args[-1]), found)
            return found

    def _parts(self, reply: list[Any]) -> tuple[tuple[str, Any], list[str], list[Any]]:
        try:
            kind, value, printed, news = reply
            first, second = printed
        except (ValueError, TypeError):
            raise talking.LeftError("an answer makes no sense") from None
        return (str(kind), value), [first, second], list(news)

    def signature(self, called: object) -> inspect.Signature:
        """Return how something of the sample is called."""
        parts = [
            inspect.Parameter(name, kind, default=default[0], annotation=noted[0])
            if default and noted
            else inspect.Parameter(name, kind, default=default[0])
            if default
            else inspect.Parameter(name, kind, annotation=noted[0])
            if noted
            else inspect.Parameter(name, kind)
            for name, kind, default, noted in self.do("signature", called)
        ]
        return inspect.Signature(parts)

    def call(self, called: object, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return what a call gives, in the test's environment and with the files that it names."""
        self._follow_environment()
        self._roots |= dict.fromkeys(self._paths([*args, *named.values()]))
        if self._roots or (data := _data_files([*args, *named.values()])):
            self._tell_files({} if self._roots else data)
        self._forget_arguments()
        try:
            found = self.do(
                "call",
                called,
                [self._argument(one) for one in args],
                {name: self._argument(one) for name, one in named.items()},
            )
        finally:
            if self._roots:
                self._fetch_files()
        number = number_of(found)
        if number is not None and isinstance(called, RemoteType):
            is_own = called._is_mine or called._far_number in self._named - self._aliased
            if is_own and not isinstance(found, RemoteType):
                self._made.add(number)
        return found

    def _argument(self, value: Any) -> Any:
        """Return an argument as it is sent: a container with a number, because it may be kept."""
        if not talking.is_container(value):
            return value
        self._arguments[id(value)] = value
        self._arguments.move_to_end(id(value))
        return Kept(value)

    def _forget_arguments(self) -> None:
        while len(self._arguments) > MAX_KEPT:
            self._arguments.popitem(last=False)

    def _tell_files(self, data: dict[str, bytes | None]) -> None:
        now = _files(list(self._roots))
        changed = {path: one for path, one in now.items() if self._files.get(path, 0) != one}
        gone = [path for path in self._files if path not in now]
        if changed or gone or data:
            self.do("put", changed | data, gone)
        self._files = now

    def _fetch_files(self) -> None:
        found = self.do("get", list(self._roots))
        _write(found, list(self._roots), before=self._files)
        self._files = _files(list(self._roots))

    def _follow_environment(self) -> None:
        environ = dict(os.environ)  # noqa: TID251 - as the test has it
        environ.pop("PYTEST_CURRENT_TEST", None)
        cwd = str(pathlib.Path.cwd())
        cwd = cwd if self.shared and cwd.startswith(self.shared) else ""
        if (environ, cwd) != (self._environ, self._cwd):
            self._environ, self._cwd = environ, cwd
            self.do("environ", environ, cwd)

    def _paths(self, values: list[Any]) -> Iterator[str]:
        """Yield the paths among arguments whose files the sample may read and write."""
        if not self.shared:
            return
        for value in values:
            if isinstance(value, str | pathlib.PurePath) and str(value).startswith(self.shared):
                yield str(value)
            elif isinstance(value, list | tuple | set):
                yield from self._paths(list(value))
            elif isinstance(value, dict):
                yield from self._paths([*value.values()])
        if self._cwd:
            yield self._cwd

    def binary(self, name: str, one: Any, other: Any) -> Any:
        """Return the result of an operator on one or two objects of the sample."""
        for value, beside in ((one, other), (other, one)):
            if number_of(value) is None and not self.is_named(beside):
                kind = type(beside).__name__
                raise TypeError(
                    f"{name} of a {kind!r} of the sample and {type(value).__name__!r}: "
                    "the tests do not name its class"
                )
        objects = {number for value in (one, other) if (number := number_of(value)) is not None}
        is_mixed = number_of(one) is None or number_of(other) is None
        is_distance = objects & self._distances or (is_mixed and not objects & self._made)
        result = self.do("operate", name, one, other)
        number = number_of(result)
        if is_mixed and number is None:
            raise TypeError(f"{name} of an object of the sample and a value gives no such object")
        if is_distance and number is not None:
            self._distances.add(number)
        return result

    def number_from(self, name: str, value: Remote, *more: object) -> Any:
        """Return what an object of the sample says of itself, which may be a number.

        Raises:
            TypeError: if that could be its distance from what is expected.
        """
        if value._number in self._distances and name not in {"str", "repr", "len", "hash"}:
            kind = type(value).__name__
            raise TypeError(
                f"{name} of what an operator gave of a value and a {kind!r} of the sample, which "
                "the test did not make itself"
            )
        return self.do("operate", name, value, *more)

    def is_made(self, value: Remote) -> bool:
        """Return whether an object comes from a call of its class, which the tests name."""
        return value._number in self._made and self.is_named(value)

    def is_named(self, value: Any) -> bool:
        """Return whether the tests name the class of an object."""
        kinds = {kind._far_number for kind in type(value).__mro__ if isinstance(kind, RemoteType)}
        return not kinds.isdisjoint(self._named - self._aliased)

    # ---- what is no plain data ----------------------------------------------------------------

    def hold(self, value: object) -> Any:
        number = number_of(value)
        if number is not None:
            return ["yours", number]
        if value is self._module and value is not None:
            return ["module"]
        name = value.__name__ if isinstance(value, type) else ""
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        for there, kind in self._exceptions.items():
            if value is kind:
                return ["yours", there]
        if isinstance(value, BaseException):
            return self._error_there(value)
        if isinstance(value, TracebackType):
            return None
        if isinstance(value, Kept):
            return ["kept", id(value.value), self.pack(value.value)]
        if id(value) not in self._lent_numbers:
            self._lent_numbers[id(value)] = len(self._lent)
            self._lent.append(value)
        texts = [getattr(value, name, None) for name in ("__name__", "__doc__")]
        told = [one if isinstance(one, str) else None for one in texts]
        return ["lent", self._lent_numbers[id(value)], *told, isinstance(value, FunctionType)]

    def take(self, kind: str, parts: list[Any]) -> Any:
        match kind:
            case "yours":
                return self._lent[parts[0]]
            case "held":
                return self._held(*parts)
            case "builtin":
                found = getattr(builtins, str(parts[0]))
                return found if isinstance(found, type) else None
            case "exception":
                return self._exception(*parts)
            case "raised":
                return self._error(*parts)
            case "coroutine":
                return self.coroutine(self._object(Remote, int(parts[0])))
            case "generator":
                return self._generator(self._object(Remote, int(parts[0])))
            case "kind":
                return self._kind(*parts)
            case "known":
                return _known(*map(str, parts))
            case "module":
                return self._module
            case _:
                raise ValueError(kind)

    def _generator(self, remote: Remote) -> Generator[Any, Any, Any]:
        """Yield what a generator of the sample yields, which gets what is sent to this one."""
        sent: object = None
        try:
            while True:
                sent = yield self.do("send", remote, sent)
        except StopIteration as end:
            return end.value
        finally:
            with contextlib.suppress(Exception):
                self.do("getattr", remote, "close")()

    async def coroutine(self, remote: Remote) -> Any:
        return self.do("run", remote)

    def _kind(
        self,
        number: int,
        name: str = "",
        doc: object = None,
        bases: Any = (),
        members: Any = None,
        base: object = None,
        fields: Any = (),
        is_async: object = False,
    ) -> type:
        """Return the class here for one of the sample, which is told once."""
        if number not in self.kinds:
            plain = self.unpack(base)
            if isinstance(plain, type) and plain in BASES:
                names = [one for one in map(str, fields) if not one.startswith("_")]
                made = _copy_class(plain, str(name), names, self, int(number))
            else:
                found = [self.unpack(one) for one in bases]
                far = [one for one in found if isinstance(one, type) and issubclass(one, Remote)]
                root = AsyncRemote if is_async else Remote
                if not any(issubclass(one, root) for one in far):
                    far.append(root)
                made = _mirror(self, int(number), str(name), doc, far, dict(members or {}))
            self.kinds[number] = made
        return self.kinds[number]

    def _object(self, kind: Any, number: int, name: str = "") -> Any:
        made = object.__new__(kind)
        for field, value in (("_line", self), ("_number", number), ("_name", name)):
            object.__setattr__(made, field, value)
        return made

    def _held(self, number: int, kind: Any, name: str, base: Any, flavour: str) -> Any:
        self._made.discard(number)
        if number not in self._far:
            flavours: dict[str, Any] = {"function": FunctionRemote, "async": AsyncRemote}
            found = flavours.get(flavour, Remote)
            found = found if kind is None else self.unpack(kind)
            if base is None:
                self._far[number] = self._object(found, int(number), str(name))
            else:
                plain = self.unpack(base)
                base_class: Any = type(plain)
                if kind is None:
                    if base_class not in self._copies:
                        self._copies[base_class] = _copy_class(
                            base_class, base_class.__name__, [], self, -1
                        )
                    found = self._copies[base_class]
                copy = base_class.__new__(found, plain)
                if base_class in {list, dict, set}:
                    base_class.__init__(copy, plain)
                copy.__dict__["_number"] = int(number)
                self._far[number] = copy
        return self._far[number]

    def _renew(self, number: Any, base: Any) -> None:
        """Give a container the contents that it has in the sample by now."""
        now = self.unpack(base)
        if not isinstance(number, int):  # it was an argument
            talking.changed(self._arguments.get(number[0]), now)
            return
        found = self._far.get(number)
        if isinstance(found, list):
            list.__setitem__(found, slice(None), now)
        elif isinstance(found, dict):
            dict.clear(found)
            dict.update(found, now)
        elif isinstance(found, set):
            set.clear(found)
            set.update(found, now)

    def _exception(self, number: int, name: str, *bases: Any) -> type[BaseException]:
        if number not in self._exceptions:
            found = tuple(self.unpack(one) for one in bases)
            line = self

            def init(self: Any, *args: object, **named: object) -> None:
                found = line.call(made, args, named)
                self.args = found.args
                self.__dict__.update(found.__dict__)
                if type(self) is not made:  # the sample has none of this class
                    del self.__dict__["_there"]

            body = {"__str__": lambda self: self.__dict__.get("_text", ""), "__init__": init}
            made = type(str(name), found or (Exception,), body)
            assert issubclass(made, BaseException), name
            self._exceptions[number] = made
        return self._exceptions[number]

    def _error(
        self, kind: Any, args: Any, own: Any, text: str, number: int, cause: Any
    ) -> BaseException:
        found, arguments = self.unpack(kind), self.unpack(args)
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            found = RuntimeError
        if found is KeyboardInterrupt or found is GeneratorExit:
            found = RuntimeError  # the test's own session is not the sample's to end
        error: BaseException
        try:
            error = found(*arguments) if found.__module__ == "builtins" else found.__new__(found)
            error.args = tuple(arguments)
        except Exception:  # noqa: BLE001 - it takes others
            error = RuntimeError(str(text))
        values = self.unpack(own)
        error.__dict__.update({str(k): v for k, v in values.items() if k != "_text"})
        error.__dict__.update(_text=str(text), _there=int(number))
        because = self.unpack(cause)
        error.__cause__ = because if isinstance(because, BaseException) else None
        return error

    # ---- questions of the sample ---------------------------------------------------------------

    def answer(self, what: str, parts: list[Any]) -> list[Any]:
        """Return how it went and the answer, for something that the sample was handed."""
        printed, *rest = parts
        for stream, text in zip((sys.stdout, sys.stderr), printed, strict=True):
            stream.write(str(text))
        args = [self.unpack(one) for one in rest]
        try:
            found = self._answer(what, args)
            value = self.pack(self._argument(found) if what == "getattr" else found)
            kind = "gave"
        except talking.LeftError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised in the sample
            kind, value = "raised", self._error_there(error)
        changed = [one for one in args[1:] if talking.is_container(one)]
        return [kind, value, *map(self.pack, changed)]

    def _error_there(self, error: BaseException) -> list[Any]:
        """Return an exception of the tests as the sample is to raise it."""
        if "_there" in error.__dict__:
            return ["yours", error.__dict__["_there"]]
        far = {kind: number for number, kind in self._exceptions.items()}
        name = next((far[one] for one in type(error).__mro__ if one in far), type(error).__name__)
        if isinstance(error, AssertionError) or not isinstance(error, Exception):
            return ["error", name, [], {}]  # its text may say what was expected
        mine = [vars(one) for one in type(error).__mro__ if one.__module__ != "builtins"]
        held = {key: value for one in reversed(mine) for key, value in one.items()}
        held = {key: value for key, value in held.items() if type(value) in {int, str, float}}
        held.pop("__module__", None)
        own = {key: self.pack(value) for key, value in (held | vars(error)).items()}
        return ["error", name, [self.pack(one) for one in error.args], own]

    def _answer(self, what: str, args: list[Any]) -> Any:
        if what == "input":
            return builtins.input(*args)
        if what == "stdin":
            return getattr(sys.stdin, "read" if args[0] == "read" else "readline")(int(args[1]))
        if what == "warn":
            warnings.warn(str(args[0]), args[1], stacklevel=2)
            return None
        if what == "log":
            logger = logging.getLogger(str(args[0]))
            if logger.isEnabledFor(int(args[1])):
                record = logger.makeRecord(logger.name, args[1], "", 0, str(args[2]), (), None)
                logger.handle(record)
            return None
        if what not in _LENT:
            raise PermissionError(f"{what}: what is lent can be called, compared and read")
        owner, *others = self._lent[args[0]], *args[1:]
        if what == "call":
            return owner(*others[0], **others[1])
        match what:
            case "getattr":
                return _public(owner, str(others[0]))
            case "setattr" | "delattr":
                return getattr(builtins, what)(_settable(owner, str(others[0])), *others)
            case "enter":
                return type(owner).__enter__(owner)
            case "exit":
                return type(owner).__exit__(owner, *others)
            case "await":
                return _awaited(owner)
            case _:
                pass
        return (getattr(operator, what, None) or getattr(builtins, what))(owner, *others)


def _awaited(awaitable: Any) -> Any:
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


def _known(module: str, name: str) -> type[BaseException]:
    """Return a class of exceptions of the standard library."""
    found = getattr(importlib.import_module(module), name, None)
    is_known = module.partition(".")[0] in sys.stdlib_module_names
    if is_known and isinstance(found, type) and issubclass(found, Exception):
        return found
    raise ValueError(f"{module}.{name} is no exception of Python")


def _public(lent: object, name: str) -> Any:
    """Return an attribute of what a class of Python made: those of functions and frames tell all.

    Raises:
        AttributeError: for every other.
    """
    return getattr(_settable(lent, name), name)


def _settable(lent: object, name: str) -> Any:
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


def _data_files(values: list[Any]) -> dict[str, bytes | None]:
    """Return the files of the tree that arguments name, but for Python's."""
    found: dict[str, bytes | None] = {}
    for value in values:
        if not isinstance(value, str | pathlib.PurePath) or not 0 < len(str(value)) < MAX_PATH:
            continue
        place = pathlib.Path(value)
        with contextlib.suppress(OSError, ValueError):
            is_inside = place.resolve().is_relative_to(pathlib.Path.cwd())
            if is_inside and place.suffix != ".py" and place.is_file():
                found[str(value)] = place.read_bytes()
    return found


def _files(roots: list[str]) -> dict[str, bytes | None]:
    """Return the files at and below some paths; None is a directory."""
    found: dict[str, bytes | None] = {}
    for root in map(pathlib.Path, roots):
        if not root.exists():
            found[str(root.parent)] = None
        for place in [root, *sorted(root.rglob("*"))] if root.exists() else []:
            found[str(place)] = None if place.is_dir() else place.read_bytes()
    return found


def _write(files: Any, roots: list[str], *, before: Mapping[str, object]) -> None:
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

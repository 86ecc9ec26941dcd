"""Objects of a sample as a grader sees them: plain data is here, all else stays in the sample.

Of a test only the arguments of calls go to the sample's process (`grader_line.py`): names,
attributes, what is called with which arguments, indices. What is expected does not, because every
comparison with plain data, and every operation on it, is the grader's own:

- An object of the sample equals plain data only where its class is below a plain one (a named
  tuple, a list): then it is a plain copy here, with the sample's methods beside it, whose own
  operators are asked only between two such objects, or where the tests made it. One below a class
  of Python's that wraps plain data (`UserList`, `ChainMap`) stays there, and equals a copy.
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

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, Final

OWN: Final = frozenset(
    {"_line", "_number", "_name", "_far_line", "_far_number", "_is_mine", "_is_far", "mro"}
)
HIDDEN: Final = ("_pytest", "__array", "__wrapped__", "__test__", "_ipython", "__mro_entries__")
"""Attributes that libraries look for, which the sample's objects do not have."""
SAYING: Final = frozenset(
    {name for name in dir(str) if name.startswith("is")}
    | {"startswith", "endswith", "is_integer", "issubset", "issuperset", "isdisjoint"}
    | {"difference", "symmetric_difference"}
)
"""Methods of plain data by which an object could call itself equal to what is expected."""

UNARY: Final = ("neg", "pos", "invert")
BINARY: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
_IN_PLACE: Final = ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor")
ORDER: Final = ("lt", "le", "gt", "ge")
_OF_ITSELF: Final = (
    *("len", "str", "repr", "abs", "int", "float", "complex", "hash", "reversed", "index"),
    "bytes",
)
SUPER: Final = frozenset({"__init__", "__str__", "__repr__", "__call__", "__enter__", "__exit__"})
"""Methods of Python's that classes of tests ask for by `super()`."""
BASES: Final = frozenset({int, float, str, bytes, tuple, list, dict, set, frozenset})
"""Classes whose objects are plain data, below which the sample may have some."""


class Remote:  # noqa: PLW1641 - see below
    """An object of the sample. Its class here has the name and the bases of its class there."""

    __slots__ = ("_line", "_name", "_number")
    _line: Any
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
        if name in SAYING and not self._line.is_named(self):
            kind = type(self).__name__
            raise TypeError(f"{name} of a {kind!r} of the sample: the tests do not name its class")
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
        found: inspect.Signature = self._line.signature(self)
        return found

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
for _name in (*_OF_ITSELF, *UNARY):
    setattr(Remote, f"__{_name}__", _of_itself(_name))
for _name in BINARY:
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.strip('_')}__", _reflected(_name))
for _name in _IN_PLACE:
    setattr(Remote, f"__{_name}__", _binary(_name))
for _name in ORDER:
    setattr(Remote, f"__{_name}__", _ordered(_name))


class RemoteType(type):
    """A class of the sample, or one of the tests below it, which the sample knows, too."""

    _far_line: Any
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


def asked(owner: object, name: str) -> Any:
    """Return an attribute of an exception, or of its class, that only the sample has."""
    if name.startswith(("__", *HIDDEN)):
        raise AttributeError(name)
    return LINES[0].do("getattr", owner, name)


class ExceptionType(type):
    """A class of exceptions of the sample."""

    __getattr__ = asked


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
_MACHINERY: Final = frozenset({"builtins", "abc", "typing", "remote", "remote_copies"})


def _unpickled(data: bytes) -> Any:
    """Return an object of the sample that was pickled there."""
    return LINES[0].do("unpickle", data)


LINES: Final[list[Any]] = []
"""The lines of this process, of type `grader_line.Grader`."""


def number_of(value: object) -> int | None:
    """Return the number of an object of the sample; None for any other."""
    if isinstance(value, Remote):
        return value._number
    if isinstance(value, RemoteType):
        return value._far_number
    found = vars(value) if getattr(type(value), "_is_far", False) else {}
    number = found.get("_number")
    return number if isinstance(number, int) else None


def numbers_of(*values: object) -> set[int]:
    """Return the numbers of those values that are objects of the sample."""
    return {number for value in values if (number := number_of(value)) is not None}


def _plain(value: Any) -> Any:
    """Return what a container of the tests holds that compares with its own kind only."""
    return vars(value) if type(value) is SimpleNamespace else value


def mirror(
    line: Any, number: int, name: str, doc: object, bases: list[Any], members: dict[str, str]
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


def _member(line: Any, owner: Any, name: str, kind: str) -> Any:
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

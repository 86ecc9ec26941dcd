"""Objects of a sample as a grader sees them: plain data is here, all else stays in the sample.

The grader's end of the line to the sample's process (`answering.py`). Of a test only the arguments
of calls go there: names, attributes, what is called with which arguments, indices. What is expected
does not, because every comparison with plain data, and every operation on it, is the grader's own:

- An object of the sample equals plain data only where its class is below a plain one (a named
  tuple, a list): then it is a plain copy here, with the sample's methods beside it.
- Two of its objects are compared by its own method. An operator of an object takes plain data as an
  argument only if the tests name its class, `Vector` or `_Node`, and only if the result is an
  object of the sample's again: an object that nobody asked for is given nothing, and no difference
  to what is expected is the sample's to say. So the result is no number either, unless the tests
  made the object by calling its class.
- `in` looks through what an object yields, unless the tests made it.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import operator
import os
import pathlib
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

if TYPE_CHECKING:
    from plexsvc.reward.programs import talking
else:
    import talking

OWN: Final = frozenset({"_line", "_number", "_kinds", "_names", "_instances"})
HIDDEN: Final = ("_pytest", "__array", "__wrapped__", "__test__", "_ipython", "__mro_entries__")
"""Attributes that libraries look for, which the sample's objects do not have."""

_UNARY: Final = ("neg", "pos", "invert")
_BINARY: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
_IN_PLACE: Final = ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor")
_ORDER: Final = ("lt", "le", "gt", "ge")
_OF_ITSELF: Final = ("len", "str", "repr", "abs", "int", "float", "complex", "hash", "reversed")
_LENT: Final = frozenset(
    {"call", "getattr", "eq", "lt", "le", "gt", "ge", "getitem", "contains", "setitem", "delitem"}
    | {"len", "iter", "next", "str", "repr", "hash", "bool", "int", "float", "abs", "neg"}
    | {"add", "sub", "mul", "truediv", "floordiv", "mod"}
)
"""What the sample may do with what it was handed."""


class Remote:
    """An object of the sample."""

    def __init__(self, line: Grader, number: int, kinds: list[int], names: list[str]) -> None:
        self.__dict__.update(_line=line, _number=number, _kinds=kinds, _names=names)

    def __call__(self, *args: object, **named: object) -> Any:
        return self._line.call(self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(HIDDEN) or name in OWN:
            raise AttributeError(name)
        return self._line.do("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._line.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._line.do("delattr", self, name)

    @property
    def __name__(self) -> str:
        return str(self._names[1] or self._names[0])

    @property
    def __doc__(self) -> Any:  # type: ignore[override] # that of the sample's
        return self._line.do("doc", self)[1]

    def __dir__(self) -> list[str]:
        return list(self._line.do("dir", self))

    def __eq__(self, other: object) -> Any:
        there = number_of(other)
        if there is None:
            return NotImplemented
        return there == self._number or bool(self._line.do("eq", self, other))

    def __ne__(self, other: object) -> Any:
        equal: Any = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return int(self._line.do("operate", "hash", self))

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

    def __instancecheck__(self, instance: object) -> bool:
        return bool(self._line.has_kind(instance, self))

    def __subclasscheck__(self, other: Any) -> bool:
        return number_of(other) is not None and bool(self._line.do("issubclass", other, self))

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (self._line.base_for(self),)

    def __enter__(self) -> Any:
        return self._line.do("getattr", self, "__enter__")()

    def __exit__(self, kind: Any, error: Any, _: object) -> Any:
        leave = self._line.do("getattr", self, "__exit__")
        told = (None, None) if error is None else (kind, error)
        return leave(*told, None)


class AsyncRemote(Remote):
    """An object of the sample whose class says how it is awaited, iterated over or entered."""

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


for _name in (*_OF_ITSELF, *_UNARY):
    setattr(Remote, f"__{_name}__", _of_itself(_name))
for _name in _BINARY:
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.strip('_')}__", _reflected(_name))
for _name in _IN_PLACE:
    setattr(Remote, f"__{_name}__", _binary(_name))
for _name in _ORDER:
    setattr(Remote, f"__{_name}__", _ordered(_name))


def number_of(value: object) -> int | None:
    """Return the number of an object of the sample; None for any other."""
    if isinstance(value, type) and "_remote_class" in value.__dict__:
        return int(value.__dict__["_remote_class"]._number)
    found = vars(value) if getattr(type(value), "_is_far", False) else {}
    if isinstance(value, Remote):
        found = value.__dict__
    number = found.get("_number")
    return number if isinstance(number, int) else None


def _copy_class(base: type, names: list[str], fields: list[str]) -> type:
    """Return a class of plain copies that have the sample's methods beside."""

    def attribute(self: Any, name: str) -> Any:
        if name.startswith(HIDDEN) or name in OWN or (name.startswith("__") and name != "__name__"):
            raise AttributeError(name)
        return self.__dict__["_line"].do("getattr", self, name)

    def assign(self: Any, name: str, value: object) -> None:
        self.__dict__["_line"].do("setattr", self, name, value)

    body: dict[str, Any] = {"__getattr__": attribute, "__setattr__": assign, "_is_far": True}
    if base in {list, dict, set}:
        for method in vars(base):  # what changes it is done in the sample, which tells its contents
            if not method.startswith("__"):
                body[method] = _method(method)
        for method in ("setitem", "delitem", "iadd", "ior"):
            if hasattr(base, f"__{method}__"):
                body[f"__{method}__"] = _operation(method)
    if base is dict:
        body["__missing__"] = _operation("getitem")
    body.update({name: property(operator.itemgetter(at)) for at, name in enumerate(fields)})
    if fields:
        body["_fields"] = tuple(fields)
        body["_asdict"] = lambda self: dict(zip(fields, self, strict=False))
    body["__repr__"] = body["__str__"] = _text
    body["__hash__"] = base.__hash__
    return type(names[0], (base,), body)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **named: self.__dict__["_line"].do("getattr", self, name)(
        *args, **named
    )


def _operation(name: str) -> Callable[..., Any]:
    return lambda self, *args: self.__dict__["_line"].do("operate", name, self, *args)


def _text(self: Any) -> str:
    return str(self.__dict__["_line"].do("operate", "str", self))


class Grader(talking.Line):
    """The grader's end of the line."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.asked = 0
        """Questions so far."""
        self.shared = ""
        """Directory below which files that an argument names go to the sample and come back."""
        self._lent: list[Any] = []
        self._far: dict[int, Any] = {}
        self.spelt: set[str] | None = None
        """Names of the sample that the texts of the tests have, if they can have others."""
        self._named: set[int] = set()
        """Classes that the tests name."""
        self._classes: set[int] = set()
        self._made: set[int] = set()
        """Objects that the last call which returned them was one of their class."""
        self._distances: set[int] = set()
        """What operators with plain data gave of other objects."""
        self._exceptions: dict[int, type[BaseException]] = {}
        self._copies: dict[tuple[int, type], type] = {}
        self._bases: dict[int, type] = {}
        self._module: Any = None
        self._environ: dict[str, str] = {}
        self._cwd = ""

    def load(self, path: str, name: str, module: Any) -> list[str]:
        """Have the sample's file be run; return the names that it defines."""
        self._module = module
        return list(self.do("load", path, name, dict(os.environ)))  # noqa: TID251 - the tests'

    def name(self, name: str) -> Any:
        """Return what a name of the sample stands for; a class is one that the tests name."""
        found = self.do("name", name)
        number = number_of(found)
        is_spelt = self.spelt is None or name in self.spelt
        if number is not None and is_spelt and name.lstrip("_")[:1].isupper():
            self._named.add(number)
        return found

    def do(self, what: str, *args: object) -> Any:
        """Return what the sample answers; raise what it raised."""
        self.asked += 1
        packed = [self.pack(one) for one in args]
        (kind, value), printed, news, after = self._parts(self.ask(what, *packed))
        for stream, text in zip((sys.stdout, sys.stderr), printed, strict=True):
            if text:
                stream.write(str(text))
        for number, base in news:
            self._renew(number, base)
        containers = [one for one in args if talking.is_container(one)]
        for before, now in zip(containers, after, strict=False):
            talking.changed(before, self.unpack(now))
        if kind == "raised":
            raise self.unpack(value)
        if what == "call" and isinstance(value, list) and value[:1] == ["argument"]:
            return args[1][value[1]]  # type: ignore[index] # the list of arguments
        return self.unpack(value)

    def _parts(self, reply: list[Any]) -> tuple[tuple[str, Any], list[str], list[Any], list[Any]]:
        try:
            kind, value, printed, news, after = reply
            first, second = printed
        except (ValueError, TypeError):
            raise talking.LeftError("an answer makes no sense") from None
        return (str(kind), value), [first, second], list(news), list(after)

    def call(self, called: object, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return what a call gives, in the test's environment and with the files that it names."""
        self._follow_environment()
        roots = list(self._roots([*args, *named.values()]))
        if roots:
            self.do("put", _files(roots))
        try:
            found = self.do("call", called, list(args), dict(named))
        finally:
            if roots:
                _write(self.do("get", roots), roots)
        if number_of(called) in self._classes and (number := number_of(found)) is not None:
            self._made.add(number)
        return found

    def _follow_environment(self) -> None:
        environ = dict(os.environ)  # noqa: TID251 - as the test has it
        environ.pop("PYTEST_CURRENT_TEST", None)
        cwd = str(pathlib.Path.cwd())
        cwd = cwd if self.shared and cwd.startswith(self.shared) else ""
        if (environ, cwd) != (self._environ, self._cwd):
            self._environ, self._cwd = environ, cwd
            self.do("environ", environ, cwd)

    def _roots(self, values: list[Any]) -> Iterator[str]:
        if not self.shared:
            return
        for value in values:
            if isinstance(value, str | pathlib.PurePath) and str(value).startswith(self.shared):
                yield str(value)
            elif isinstance(value, list | tuple | set):
                yield from self._roots(list(value))
            elif isinstance(value, dict):
                yield from self._roots([*value.values()])
        if self._cwd and not values:
            yield self._cwd

    def binary(self, name: str, one: Any, other: Any) -> Any:
        """Return the result of an operator on one or two objects of the sample."""
        for value, beside in ((one, other), (other, one)):
            if number_of(value) is None and not self.is_named(beside):
                kind = beside._names[0]
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
            kind = value._names[0]
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
        kinds = getattr(value, "__dict__", {}).get("_kinds") or ()
        return not self._named.isdisjoint(kinds)

    def has_kind(self, instance: Any, kind: Remote) -> bool:
        """Return whether an object of the sample has a class of the sample."""
        if number_of(instance) is None:
            return False
        return bool(self.do("isinstance", instance, kind))

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
        self._lent.append(value)
        return ["lent", len(self._lent) - 1]

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
                return self.coroutine(Remote(self, int(parts[0]), [], [kind, ""]))
            case "generator":
                return self._generator(Remote(self, int(parts[0]), [], [kind, ""]))
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

    def _held(
        self,
        number: int,
        is_class: bool,
        kinds: list[int],
        names: list[str],
        base: Any,
        fields: list[str],
        is_async: bool,
    ) -> Any:
        self._made.discard(number)
        if is_class:
            self._classes.add(number)
        if number in self._bases and is_class:
            return self._bases[number]
        if number not in self._far:
            kinds, names = list(map(int, kinds)), list(map(str, names))
            plain = None if base is None else self.unpack(base)
            if plain is None:
                made = AsyncRemote if is_async else Remote
                self._far[number] = made(self, int(number), kinds, names)
            else:
                key = (kinds[0] if kinds else -1, type(plain))
                if key not in self._copies:
                    self._copies[key] = _copy_class(type(plain), names, list(map(str, fields)))
                copy = self._copies[key](plain)
                copy.__dict__.update(_line=self, _number=int(number), _kinds=kinds, _names=names)
                self._far[number] = copy
        return self._far[number]

    def _renew(self, number: int, base: Any) -> None:
        """Give the copy of a container the contents that it has in the sample by now."""
        found, now = self._far.get(number), self.unpack(base)
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
            body = {"__str__": lambda self: self.__dict__.get("_text", "")}
            made = type(str(name), found or (Exception,), body)
            assert issubclass(made, BaseException), name
            self._exceptions[number] = made
        return self._exceptions[number]

    def _error(self, kind: Any, args: Any, own: Any, text: str, _: int) -> BaseException:
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
        error.__dict__["_text"] = str(text)
        return error

    # ---- classes of the tests below one of the sample's ----------------------------------------

    def base_for(self, remote: Remote) -> type:
        """Return the class here that a test's class is made below, in place of the sample's."""
        line, names = self, [one for one in dir(remote) if not one.startswith("__")]

        def subclass(cls: Any, **_: object) -> None:
            own = {
                name: value
                for name, value in vars(cls).items()
                if name not in {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
                and not name.startswith(
                    ("__firstlineno", "__static_attr", "__annotations", "__init_subclass")
                )
            }
            base = next(one for one in cls.__mro__[1:] if "_remote_class" in one.__dict__)
            methods = {
                name: line.overriding(value) if callable(value) else value
                for name, value in own.items()
                if not isinstance(value, property | staticmethod | classmethod)
            }
            cls._remote_class = line.do(
                "subclass", base.__dict__["_remote_class"], cls.__name__, methods
            )

        def new(cls: Any, *_: object, **__: object) -> Any:
            made = object.__new__(cls)
            there = line.do("new", cls.__dict__["_remote_class"])
            made.__dict__.update(
                _line=line, _number=there._number, _kinds=there._kinds, _names=there._names
            )
            line._far[there._number] = made
            return made

        def init(self: Any, *args: object, **named: object) -> None:
            line.do("getattr", remote, "__init__")(self, *args, **named)

        def attribute(self: Any, name: str) -> Any:
            if name.startswith(HIDDEN) or name in OWN:
                raise AttributeError(name)
            return line.do("getattr", self, name)

        def assign(self: Any, name: str, value: object) -> None:
            line.do("setattr", self, name, value)

        body: dict[str, Any] = {
            "__init_subclass__": classmethod(subclass),  # type: ignore[arg-type]
            "__new__": new,
            "__init__": init,
            "__getattr__": attribute,
            "__setattr__": assign,
            "__eq__": Remote.__eq__,
            "__hash__": Remote.__hash__,
            "__str__": _text,
            "__repr__": _text,
            "_is_far": True,
            "_remote_class": remote,
        }
        for name in names:
            body[name] = _inherited(line, remote, name)
        for name in (
            "len",
            "iter",
            "bool",
            "getitem",
            "contains",
            "add",
            "sub",
            "mul",
            "lt",
            "call",
        ):
            body[f"__{name}__"] = getattr(Remote, f"__{name}__")
        return type(remote.__name__, (), body)

    def overriding(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return what the sample calls in place of a method that a test's class overrides."""
        return lambda *args, **named: method(*args, **named)  # noqa: PLW0108 - a function, not a method

    # ---- questions of the sample ---------------------------------------------------------------

    def answer(self, what: str, parts: list[Any]) -> list[Any]:
        """Return how it went and the answer, for something that the sample was handed."""
        printed, *rest = parts
        for stream, text in zip((sys.stdout, sys.stderr), printed, strict=True):
            stream.write(str(text))
        args = [self.unpack(one) for one in rest]
        try:
            value = self.pack(self._answer(what, args))
            kind = "gave"
        except talking.LeftError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised in the sample
            name = type(error).__name__
            kind, value = "raised", ["error", name, [str(one) for one in error.args]]
        changed = [one for one in args[1:] if talking.is_container(one)]
        return [kind, value, *map(self.pack, changed)]

    def _answer(self, what: str, args: list[Any]) -> Any:
        if what == "input":
            return builtins.input(*args)
        if what == "stdin":
            return getattr(sys.stdin, "read" if args[0] == "read" else "readline")(int(args[1]))
        if what not in _LENT:
            raise PermissionError(f"{what}: what is lent can be called, compared and read")
        owner, *others = self._lent[args[0]], *args[1:]
        if what == "call":
            return owner(*others[0], **others[1])
        if what == "getattr":
            return _public(owner, str(others[0]))
        return (getattr(operator, what, None) or getattr(builtins, what))(owner, *others)


def _inherited(line: Grader, remote: Remote, name: str) -> Any:
    """Return what a test's class has of the sample's: a method, or whatever it is there."""

    def method(self: Any, *args: object, **named: object) -> Any:
        return line.do("getattr", remote, name)(self, *args, **named)

    return method


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
    is_counting = isinstance(lent, mock.NonCallableMock) and hasattr(mock.NonCallableMock, name)
    is_hidden = name.startswith("_") or type(lent).__module__ in {"builtins", "types"}
    if is_hidden or is_counting:  # a mock counts what it was asked: not by the sample's leave
        raise AttributeError(f"{name} of a {type(lent).__name__} is not lent")
    return getattr(lent, name)


def _files(roots: list[str]) -> dict[str, bytes | None]:
    """Return the files at and below some paths; None is a directory."""
    found: dict[str, bytes | None] = {}
    for root in map(pathlib.Path, roots):
        if not root.exists():
            found[str(root.parent)] = None
        for place in [root, *sorted(root.rglob("*"))] if root.exists() else []:
            found[str(place)] = None if place.is_dir() else place.read_bytes()
    return found


def _write(files: Any, roots: list[str]) -> None:
    """Write the files that the sample left where it was told."""
    for path, data in files.items():
        place = pathlib.Path(os.path.normpath(path))
        is_asked = any(place.is_relative_to(root) for root in roots)
        if not is_asked or not isinstance(data, bytes | None):
            continue
        (place if data is None else place.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            place.write_bytes(data)

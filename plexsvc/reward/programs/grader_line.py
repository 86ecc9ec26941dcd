"""A grader's end of the line to the sample's process, whose other end is `answering.py`.

It asks for names, attributes and calls of the sample, makes what comes back plain data or objects
that stand for the sample's (`remote.py`), and answers what the sample asks of what it was handed.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import os
import pathlib
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Generator, Mapping
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plexsvc.reward.programs import grader_lends, remote, remote_copies, talking
else:
    import grader_lends
    import remote
    import remote_copies
    import talking

MAX_KEPT: Final = 64
"""Containers that were arguments and are followed."""
UNTOLD: Final = frozenset(
    {"load", "environ", "put", "get", "patch", "seed", "setattr", "delattr", "subclass"}
)
"""Questions whose answers say nothing of what the sample computes."""
_FLAVOURS: Final[dict[str, Any]] = {"function": remote.FunctionRemote, "async": remote.AsyncRemote}


class KeptArgument:
    """An argument that the sample may keep and change later."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Grader(talking.MessageLine):
    """The grader's end of the line."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.asked = 0
        """Questions so far."""
        self.told = 0
        """Answers of these that were plain data."""
        self.files = grader_lends.NamedFiles(self.do)
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
        self._derived: set[int] = set()
        """Copies that operators made of such objects."""
        self._distances: set[int] = set()
        """What operators with plain data gave of other objects."""
        self._exceptions: dict[int, type[BaseException]] = {}
        self._copies: dict[type, type] = {}
        self._arguments: OrderedDict[int, Any] = OrderedDict()
        """Containers that were arguments lately: the sample may have kept them."""
        self._knew: dict[int, Any] = {}
        """What the sample last knew of them, packed."""
        self._module: Any = None
        self._environ: dict[str, str] = {}
        self._cwd = ""
        self._lock = threading.RLock()
        remote.LINES.append(self)

    def load(self, path: str, name: str, module: Any) -> list[str]:
        """Have the sample's file be run; return the names that it defines."""
        self._module, self.module_name = module, name
        return list(self.do("load", path, name, dict(os.environ)))  # noqa: TID251 - the tests'

    def name(self, name: str) -> Any:
        """Return what a name of the sample stands for; a class is one that the tests name."""
        return self.do("name", name)

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
            is_plain = remote.number_of(found) is None or isinstance(found, tuple(remote.BASES))
            is_plain = is_plain and found is not NotImplemented
            self.told += is_plain and what not in UNTOLD
            if what in {"name", "getattr"}:
                name = str(args[-1])
                if isinstance(found, remote.RemoteType):
                    is_spelt = self.spelt is None or name in self.spelt
                    if not name.lstrip("_")[:1].isupper():
                        self._aliased.add(found._far_number)
                    elif is_spelt:
                        self._named.add(found._far_number)
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
        empty = inspect.Parameter.empty
        parts = [
            inspect.Parameter(
                name, kind, default=[*default, empty][0], annotation=[*noted, empty][0]
            )
            for name, kind, default, noted in self.do("signature", called)
        ]
        return inspect.Signature(parts)

    def call(self, called: object, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return what a call gives, in the test's environment and with the files that it names."""
        environ = dict(os.environ)  # noqa: TID251 - as the test has it
        environ.pop("PYTEST_CURRENT_TEST", None)
        cwd = str(pathlib.Path.cwd())
        cwd = cwd if self.files.shared and cwd.startswith(self.files.shared) else ""
        if (environ, cwd) != (self._environ, self._cwd):
            self._environ, self._cwd = environ, cwd
            self.do("environ", environ, cwd)
        self.files.tell([*args, *named.values()], cwd=cwd)
        while len(self._arguments) > MAX_KEPT:
            self._knew.pop(self._arguments.popitem(last=False)[0], None)
        try:
            found = self.do(
                "call",
                called,
                [self._argument(one) for one in args],
                {name: self._argument(one) for name, one in named.items()},
            )
        finally:
            self.files.fetch()
        number = remote.number_of(found)
        if number is not None and isinstance(called, remote.RemoteType):
            is_own = called._is_mine or called._far_number in self._named - self._aliased
            if is_own and not isinstance(found, remote.RemoteType):
                self._made.add(number)
        return found

    def _argument(self, value: Any) -> Any:
        """Return an argument as it is sent: a container with a number, because it may be kept."""
        if not talking.is_container(value):
            return value
        self._arguments[id(value)] = value
        self._arguments.move_to_end(id(value))
        return KeptArgument(value)

    def binary(self, name: str, one: Any, other: Any) -> Any:
        """Return the result of an operator on one or two objects of the sample."""
        for value, beside in ((one, other), (other, one)):
            if remote.number_of(value) is None and not self.is_named(beside):
                kind = type(beside).__name__
                raise TypeError(
                    f"{name} of a {kind!r} of the sample and {type(value).__name__!r}: "
                    "the tests do not name its class"
                )
        objects = remote.numbers_of(one, other)
        is_mixed = remote.number_of(one) is None or remote.number_of(other) is None
        is_distance = objects & self._distances or (is_mixed and not objects & self._made)
        result = self.do("operate", name, one, other)
        number = remote.number_of(result)
        if is_mixed and number is None:
            raise TypeError(f"{name} of an object of the sample and a value gives no such object")
        if is_distance and number is not None:
            self._distances.add(number)
        return result

    def of_copy(self, name: str, base: Any, one: Any, other: Any) -> Any:
        """Return the result of an operator that the class of a plain copy has, `one` or `other`.

        It is the sample's between two of its objects. With a value of the tests it is so only for
        an object that they made, or that such operators made of those: of any other, the sample
        could tell its distance from what is expected. Else it is Python's own, on the copy.
        """
        copy, value = (one, other) if remote.number_of(one) is not None else (other, one)
        if remote.number_of(value) is None:
            is_text = base in {str, bytes, tuple, list}
            known = self._made | (self._derived if is_text else set())
            result = NotImplemented
            if copy._number in known and self.is_named(copy):
                result = self.do("operate", name, one, other)
            if remote.number_of(result) is None:
                special = f"__{'' if copy is one else 'r'}{name.strip('_')}__"
                return getattr(base, special, lambda *_: NotImplemented)(copy, value)
        else:
            result = self.do("operate", name, one, other)
        objects = remote.numbers_of(copy, value)
        number = remote.number_of(result)
        if number is not None and objects <= self._made | self._derived:
            self._derived.add(number)
        return result

    def number_from(self, name: str, value: remote.Remote, *more: object) -> Any:
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

    def is_made(self, value: remote.Remote) -> bool:
        """Return whether an object comes from a call of its class, which the tests name."""
        return value._number in self._made and self.is_named(value)

    def is_named(self, value: Any) -> bool:
        """Return whether the tests name the class of an object."""
        kinds = {
            kind._far_number for kind in type(value).__mro__ if isinstance(kind, remote.RemoteType)
        }
        return not kinds.isdisjoint(self._named - self._aliased)

    # ---- what is no plain data ----------------------------------------------------------------

    def hold(self, value: object) -> Any:
        number = remote.number_of(value)
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
        if isinstance(value, KeptArgument):
            self._knew[id(value.value)] = packed = self.pack(value.value)
            return ["kept", id(value.value), packed]
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
                return self.coroutine(self._object(remote.Remote, int(parts[0])))
            case "generator":
                return self._generator(self._object(remote.Remote, int(parts[0])))
            case "kind":
                return self._kind(*parts)
            case "known":
                return grader_lends.known(*map(str, parts))
            case "module":
                return self._module
            case _:
                raise ValueError(kind)

    def _generator(self, far: remote.Remote) -> Generator[Any, Any, Any]:
        """Yield what a generator of the sample yields, which gets what is sent to this one."""
        sent: object = None
        try:
            while True:
                sent = yield self.do("send", far, sent)
        except StopIteration as end:
            return end.value
        finally:
            with contextlib.suppress(Exception):
                self.do("getattr", far, "close")()

    async def coroutine(self, far: remote.Remote) -> Any:
        return self.do("run", far)

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
            if isinstance(plain, type) and plain in remote.BASES:
                names = [one for one in map(str, fields) if not one.startswith("_")]
                made = remote_copies.copy_class(
                    plain, str(name), names, self, int(number), operators=list(members or ())
                )
            else:
                found = [self.unpack(one) for one in bases]
                far = [
                    one for one in found if isinstance(one, type) and issubclass(one, remote.Remote)
                ]
                root = remote.AsyncRemote if is_async else remote.Remote
                if not any(issubclass(one, root) for one in far):
                    far.append(root)
                made = remote.mirror(self, int(number), str(name), doc, far, dict(members or {}))
            self.kinds[number] = made
        return self.kinds[number]

    def _object(self, kind: Any, number: int, name: str = "") -> Any:
        made = object.__new__(kind)
        for field, value in (("_line", self), ("_number", number), ("_name", name)):
            object.__setattr__(made, field, value)
        return made

    def _held(self, number: int, kind: Any, name: str, base: Any, flavour: str) -> Any:
        self._made.discard(number)
        self._derived.discard(number)
        if number not in self._far:
            found = _FLAVOURS.get(flavour, remote.Remote) if kind is None else self.unpack(kind)
            if base is None:
                self._far[number] = self._object(found, int(number), str(name))
            else:
                plain = self.unpack(base)
                base_class: Any = type(plain)
                if kind is None:
                    if base_class not in self._copies:
                        self._copies[base_class] = remote_copies.copy_class(
                            base_class, base_class.__name__, [], self, -1, operators=[]
                        )
                    found = self._copies[base_class]
                copy = base_class.__new__(found, plain)
                if base_class in {list, dict, set}:
                    base_class.__init__(copy, plain)
                copy.__dict__["_number"] = int(number)
                self._far[number] = copy
        elif base is not None:
            self._renew(number, base)
        return self._far[number]

    def _renew(self, number: Any, base: Any) -> None:
        """Give a container the contents that it has in the sample by now."""
        now = self.unpack(base)
        if not isinstance(number, int):  # it was an argument
            argument: Any = self._arguments.get(number[0])
            before = self._knew.pop(number[0], None)
            is_list = type(argument) is type(now) is list and before is not None
            if is_list and base[: len(before)] == before != self.pack(argument):
                argument.extend(now[len(before) - 1 :])  # both have added to it
            else:
                talking.changed(argument, now)
            self._knew[number[0]] = base
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

            body = {
                "__str__": lambda self: self.__dict__.get("_text", ""),
                "__init__": init,
                "__getattr__": remote.asked,
            }
            made: Any = remote.ExceptionType(str(name), found or (Exception,), body)
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
        if what not in grader_lends.LENT:
            raise PermissionError(f"{what}: what is lent can be called, compared and read")
        return grader_lends.used(what, self._lent[args[0]], *args[1:])

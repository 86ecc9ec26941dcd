"""Script that holds a sample's module and answers a grader: `answering.py FILE NAME`.

It runs in a sandbox of its own, beside the grader's, and is all that a sample can reach: it has the
sample, and the arguments of calls. So nothing here guards anything; a sample may take it over, and
can answer wrongly then, which costs it the test. It imports nothing of the package, because it is
copied.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib
import inspect
import operator
import os
import pathlib
import sys
import types
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from plexsvc.reward.programs import plain_data, stand_ins, talking
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import plain_data
    import stand_ins
    import talking

    del sys.path[0]

_STDERR: Final = 2
MAX_FILE_BYTES: Final = 8 << 20
MAX_FOLLOWED: Final = 2000
"""Elements of containers that the grader follows after a call."""
TOLD: Final = ("__init__", "__str__", "__repr__", "__call__", "__enter__", "__exit__")
"""Methods of Python's that classes of tests ask for by `super()`."""
ASYNCHRONOUS: Final = ("__await__", "__aiter__", "__aenter__")


class SampleEnd(talking.MessageLine):
    """The sample's end of the line."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.module: Any = types.ModuleType("solution")
        self._held: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._plain: dict[int, Any] = {}
        """What the grader last saw of held containers."""
        self._arguments: OrderedDict[int, Any] = OrderedDict()
        """Containers of the grader that were arguments, by their numbers there."""
        self._known: dict[int, Any] = {}
        """What the grader last knew of them."""
        self._lent: dict[int, stand_ins.Lent] = {}
        self._told: set[int] = set()
        """Classes that the grader knows."""
        self._loop: Any = None
        self._replaced: dict[tuple[int, str], Any] = {}
        """What attributes of modules and classes were before a test replaced them."""

    def serve(self) -> NoReturn:
        """Answer until nobody asks."""
        while True:
            what, *parts = self.read()
            self.send(["answer", *self.answer(str(what), parts)])

    def question(self, what: str, *args: object) -> Any:
        """Return what the grader answers; raise what it raised."""
        kind, value, *rest = self.ask(what, self.printed(), *map(self.pack, args))
        if kind == "raised":
            raise self.unpack(value)
        for argument, now in zip(_containers(args), rest, strict=False):
            talking.changed(argument, self.unpack(now))
        return self.unpack(value)

    def answer(self, what: str, parts: list[Any]) -> list[Any]:
        """Return how it went, the answer or the exception, and what it changed."""
        arguments = [self.unpack(one) for one in parts]
        handed = arguments[1] if what == "call" else []
        try:
            value = getattr(self, f"do_{what}")(*arguments)
            same = [index for index, one in enumerate(handed) if one is value]
            is_container = talking.is_container(value) and same
            reply = ["gave", ["argument", same[0]] if is_container else self.pack(value)]
        except talking.LeftError:
            raise
        except BaseException as error:  # noqa: BLE001 - the test may expect it
            reply = ["raised", self.pack_exception(error)]
        return [*reply, self.printed(), self._news()]

    def printed(self) -> list[str]:
        """Return what was printed since the last message."""
        streams = (sys.stdout, sys.stderr)
        return [one.taken() if isinstance(one, stand_ins.Echo) else "" for one in streams]

    def _news(self) -> list[Any]:
        """Return what containers that the grader knows hold by now, where that changed."""
        found = []
        for number, before in list(self._plain.items()):
            now = self._base(self._held[number])
            if now != before:
                self._plain[number] = now
                found.append([number, now])
        for number, argument in self._arguments.items():
            if (now := self.pack(argument)) != self._known[number]:
                self._known[number] = now
                found.append([[number], now])
        while sum(map(_size, self._arguments.values())) > MAX_FOLLOWED or len(self._arguments) > 64:
            old, _ = self._arguments.popitem(last=False)
            del self._known[old]
        return found

    def _keep(self, number: int, contents: Any) -> Any:
        """Return the container that stands for one of the grader, with what that holds now."""
        now = self.unpack(contents)
        kept = self._arguments.get(number)
        if type(kept) is type(now):
            talking.changed(kept, now)
        else:
            kept = self._arguments[number] = now
        self._arguments.move_to_end(number)
        self._known[number] = self.pack(kept)
        return kept

    # ---- what the grader may ask -------------------------------------------------------------

    def do_load(self, path: str, name: str, environ: dict[str, str]) -> list[str]:
        """Run the sample's file as a module; return the names that it defines."""
        os.environ.clear()  # noqa: TID251 - the sample's own
        os.environ.update(environ)  # noqa: TID251 - the sample's own
        file = pathlib.Path(path).resolve()
        top = file.parents[name.count(".")]
        sys.path.insert(0, str(top))
        package, _, _ = name.rpartition(".")
        if package:
            importlib.import_module(package)
        module = types.ModuleType(name)
        module.__file__, module.__package__ = str(file), package
        self.module = sys.modules[name] = module
        if package:
            setattr(sys.modules[package], name.rpartition(".")[2], module)
        source = file.read_bytes()
        if name == "solution":
            sys.modules.setdefault("__main__", module)
        with contextlib.suppress(SystemExit):  # a program that ends so has defined what it defines
            exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        self._listen()
        return self.do_names()

    def _listen(self) -> None:
        """Have warnings and the records of logs be the grader's."""
        warnings: Any = sys.modules["warnings"]
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: self.question(
            "warn", str(message), category
        )
        if logging := sys.modules.get("logging"):
            handler = logging.Handler()
            handler.emit = lambda record: self.question(
                "log", record.name, record.levelno, record.getMessage()
            )
            logging.root.handlers[:] = [handler]
            logging.root.setLevel(logging.NOTSET)

    def do_names(self) -> list[str]:
        return [name for name in vars(self.module) if isinstance(name, str)]

    def do_name(self, name: str) -> object:
        """Return what a name stands for; the grader follows what a container holds later."""
        return _followed(getattr(self.module, name))

    def do_call(self, called: Any, args: list[Any], named: dict[str, Any]) -> object:
        return called(*args, **named)

    def do_getattr(self, owner: object, name: str) -> object:
        return _followed(getattr(owner, name))

    def do_setattr(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute; one of a module or a class can be given back."""
        if isinstance(owner, type | types.ModuleType):
            before = vars(owner).get(name, self._replaced)
            self._replaced.setdefault((self._number(owner), name), before)
        setattr(owner, name, value)

    def do_delattr(self, owner: Any, name: str) -> None:
        before = self._replaced.pop((self._number(owner), name), self._replaced)
        if before is self._replaced:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    def do_patch(self, path: list[str], *value: object) -> None:
        """Replace something of a module of Python, or give it back."""
        module, *parts, name = path
        owner = importlib.import_module(module)
        for part in parts:
            owner = getattr(owner, part)
        if value:
            self.do_setattr(owner, name, value[0])
        else:
            self.do_delattr(owner, name)

    def do_seed(self, module: str, seed: object) -> None:
        """Seed the numbers of chance as the test does."""
        importlib.import_module(module).seed(seed)

    def do_isinstance(self, value: object, kind: Any) -> bool:
        return isinstance(value, kind)

    def do_issubclass(self, value: Any, kind: Any) -> bool:
        return issubclass(value, kind)

    def do_eq(self, one: Any, other: Any) -> bool:
        """Return whether the sample calls two of its objects equal, and not just everything."""
        if not one == other:  # noqa: SIM201 - by the method that is asked about
            return False
        try:
            return not one == object()  # noqa: SIM201 - likewise
        except Exception:  # noqa: BLE001 - its method expects its own class: it does not equal all
            return True

    def do_plain(self, value: object) -> object:
        """Return the plain data that a class of Python's wraps, whatever class is below it."""
        return plain_data.of(value, plain_data.WRAPPED)

    def do_operate(self, name: str, *args: Any) -> object:
        return (getattr(operator, name, None) or getattr(builtins, name))(*args)

    def do_send(self, generator: Any, value: object) -> object:
        return generator.send(value)

    def do_copy(self, value: object) -> object:
        return copy.copy(value)

    def do_deepcopy(self, value: object) -> object:
        return copy.deepcopy(value)

    def do_pickle(self, value: object) -> bytes:
        return importlib.import_module("pickle").dumps(value)  # type: ignore[no-any-return]

    def do_unpickle(self, data: bytes) -> object:
        return importlib.import_module("pickle").loads(data)

    def do_signature(self, called: Any) -> list[Any]:
        """Return the parameters: name, kind, default and annotation, each in a list if there."""
        empty = inspect.Parameter.empty
        return [
            [one.name, int(one.kind)]
            + [[] if part is empty else [part] for part in (one.default, one.annotation)]
            for one in inspect.signature(called).parameters.values()
        ]

    def do_member(self, owner: Any, name: str, *cls: Any) -> object:
        """Return what a class has by a name, of the class itself or of one below."""
        return _of_class(owner, name).__get__(None, cls[0]) if cls else getattr(owner, name)

    def do_get_property(self, owner: Any, name: str, value: object) -> object:
        return _of_class(owner, name).__get__(value, type(value))

    def do_run(self, coroutine: Any) -> object:
        """Await what an asynchronous function of the sample returned."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)

        async def awaited() -> object:
            return await coroutine

        return self._loop.run_until_complete(awaited())

    def do_anext(self, iterator: Any) -> object:
        return self.do_run(iterator.__anext__())

    def do_subclass(
        self, bases: list[Any], name: str, parts: dict[str, Any], named: dict[str, Any]
    ) -> int:
        """Make a class below some of the sample's whose methods are the grader's."""
        body = {key: self._part(*part) for key, part in parts.items()}
        body["__module__"] = self.module.__name__
        made = type(bases[0])(name, tuple(bases), body, **named)
        number = self._number(made)
        self._told.add(number)
        return number

    def _part(self, kind: str, value: Any, *more: Any) -> object:
        match kind:
            case "property":
                return property(value, *more)
            case "classmethod":
                return classmethod(value)
            case "staticmethod":
                return staticmethod(value)
            case _:
                return value

    def do_environ(self, environ: dict[str, str], cwd: str) -> None:
        """Have the environment and the directory be those of the test."""
        os.environ.clear()  # noqa: TID251 - the sample's own
        os.environ.update(environ)  # noqa: TID251 - the sample's own
        if cwd:
            pathlib.Path(cwd).mkdir(parents=True, exist_ok=True)
            os.chdir(cwd)

    def do_put(self, files: dict[str, Any], gone: list[str]) -> None:
        """Write files that an argument names, and remove others; None is a directory."""
        for path in sorted(gone, reverse=True):
            with contextlib.suppress(OSError):
                (os.rmdir if pathlib.Path(path).is_dir() else os.unlink)(path)
        for path, data in files.items():
            place = pathlib.Path(path)
            (place if data is None else place.parent).mkdir(parents=True, exist_ok=True)
            if data is not None:
                place.write_bytes(data)

    def do_get(self, roots: list[str]) -> dict[str, Any]:
        """Return the files at and below some paths."""
        found: dict[str, Any] = {}
        room = MAX_FILE_BYTES
        for root in map(pathlib.Path, roots):
            for place in [root, *sorted(root.rglob("*"))] if root.exists() else []:
                data = None if place.is_dir() else place.read_bytes()
                room -= len(data or b"") + len(str(place))
                found[str(place)] = data if room > 0 else False
        return found

    # ---- what is no plain data ----------------------------------------------------------------

    def hold(self, value: object) -> Any:
        if isinstance(value, stand_ins.Followed):
            value = value.container
        if isinstance(value, stand_ins.Lent):
            return ["yours", value.__dict__["_number"]]
        if value is self.module:
            return ["module"]
        if isinstance(value, type) and issubclass(value, BaseException):
            return self.pack_class(value)
        if isinstance(value, BaseException):
            return self.pack_exception(value)
        if isinstance(value, types.CoroutineType | types.GeneratorType):
            return [type(value).__name__, self._number(value)]
        name = value.__name__ if isinstance(value, type) else ""
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if isinstance(value, type):
            return self._kind(value)
        number = self._number(value)
        base = self._base(value)
        if isinstance(value, list | dict | set):
            self._plain[number] = base
            while len(self._plain) > 64:
                del self._plain[next(iter(self._plain))]
        is_async = any(hasattr(type(value), name) for name in ASYNCHRONOUS)
        flavour = "async" if is_async else ""
        if isinstance(value, types.FunctionType):
            flavour = "function"
        is_known = type(value).__module__ in {"builtins", "types", "functools", "typing"}
        kind = None if is_known else self._kind(type(value))
        name = getattr(value, "__name__", "") if is_known else ""
        return ["held", number, kind, name if isinstance(name, str) else "", base, flavour]

    def _kind(self, kind: type) -> Any:
        """Return a class: what it is called and made of is told once."""
        number = self._number(kind)
        if number in self._told:
            return ["kind", number]
        self._told.add(number)
        plain = next((one for one in plain_data.BASES if issubclass(kind, one)), None)
        base = None if plain is None else ["builtin", plain.__name__]
        fields = list(getattr(kind, "_fields", ())) if plain is tuple else []
        is_async = any(hasattr(kind, name) for name in ASYNCHRONOUS)
        bases = [
            self._kind(one)
            for one in kind.__bases__
            if one.__module__ not in {"builtins", "typing", "abc"}
        ]
        doc = kind.__doc__ if isinstance(kind.__doc__, str) else None
        own = [
            vars(one)
            for one in kind.__mro__
            if one.__module__ not in plain_data.PYTHONS or one is Counter
        ]
        members = {
            name: "" for name in plain_data.OPERATORS if plain and any(name in one for one in own)
        } or {
            name: type(value).__name__
            for name, value in vars(kind).items()
            if name in TOLD or not name.startswith("__")
            if isinstance(value, types.FunctionType | property | classmethod | staticmethod)
        }
        return ["kind", number, kind.__name__, doc, bases, members, base, fields, is_async]

    def _number(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._held)
            self._held.append(value)
        return self._numbers[id(value)]

    def _base(self, value: object) -> Any:
        """Return the plain data that a value of a class below a plain one holds."""
        found = plain_data.of(value, plain_data.BASES)
        return None if found is NotImplemented else self.pack(found)

    def pack_class(self, value: type) -> Any:
        """Return a class of exceptions, by its name or by its bases."""
        if getattr(builtins, value.__name__, None) is value:
            return ["builtin", value.__name__]
        if value.__module__.partition(".")[0] in sys.stdlib_module_names:
            return ["known", value.__module__, value.__name__]
        bases = [one for one in value.__bases__ if issubclass(one, BaseException)]
        return ["exception", self._number(value), value.__name__, *map(self.pack_class, bases)]

    def pack_exception(self, error: BaseException) -> Any:
        """Return an exception with its arguments, attributes and text."""
        own = dict(vars(error))
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - of the sample's own class
            text = ""
        parts = [self.pack(error.args), self.pack(own), text, self._number(error)]
        cause = None if error.__cause__ is None else self.pack(error.__cause__)
        return ["raised", self.pack_class(type(error)), *parts, cause]

    def take(self, kind: str, parts: list[Any]) -> Any:
        match kind:
            case "yours":
                return self._held[parts[0]]
            case "kept":
                return self._keep(*parts)
            case "lent":
                number, name, doc, is_function = parts
                if number not in self._lent:
                    made = stand_ins.LentFunction if is_function else stand_ins.Lent
                    self._lent[number] = made(self, number, name, doc)
                return self._lent[number]
            case "module":
                return self.module
            case "builtin":
                return getattr(builtins, parts[0])
            case "error":
                return self._error(*parts)
            case _:
                raise ValueError(kind)

    def _error(self, name: Any, args: list[Any], own: dict[str, Any]) -> BaseException:
        """Return an exception that a test raised."""
        is_mine = isinstance(name, int)
        found = self._held[name] if is_mine else getattr(builtins, name, RuntimeError)
        args = [self.unpack(one) for one in args]
        made: BaseException = found.__new__(found, *args) if is_mine else found(*args)
        made.args = tuple(args)
        vars(made).update({key: self.unpack(one) for key, one in own.items()})
        return made


def _containers(args: Any) -> list[Any]:
    """Return what a call may have changed of its arguments."""
    return [one for one in args if talking.is_container(one)]


def _followed(value: Any) -> Any:
    """Return a plain container so that the grader follows what it holds later."""
    is_followed = type(value) in {list, dict, set} and len(value) <= MAX_FOLLOWED
    return stand_ins.Followed(value) if is_followed else value


def _size(container: Any) -> int:
    return int(getattr(container, "size", 0)) or len(container)


def _of_class(owner: type, name: str) -> Any:
    return next(vars(one)[name] for one in owner.__mro__ if name in vars(one))


def main() -> None:
    """Answer until the grader is done."""
    line = SampleEnd(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(_STDERR, 1)
    sys.stdout = stand_ins.Echo("stdout", sys.__stdout__)
    sys.stderr = stand_ins.Echo("stderr", sys.__stderr__)
    sys.stdin = stand_ins.Input(line)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as where packages are
    builtins.input = lambda prompt="", /: line.question("input", prompt)
    for name in ("plain_data", "stand_ins", "talking"):  # the sample may have some of its own
        sys.modules.pop(name, None)
    try:
        line.serve()
    except talking.LeftError as left:
        os.write(_STDERR, f"{left}\n".encode(errors="replace"))
        os._exit(0)


if __name__ == "__main__":
    main()

"""Script that holds a sample's module and answers a grader: `answering.py FILE NAME`.

It runs in a sandbox of its own, beside the grader's, and is all that a sample can reach: it has the
sample, and the arguments of calls. So nothing here guards anything; a sample may take it over, and
can answer wrongly then, which costs it the test. It imports nothing of the package, because it is
copied.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import operator
import os
import pathlib
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from plexsvc.reward.programs import talking
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import talking

    del sys.path[0]

_STDERR: Final = 2
MAX_PRINTED: Final = 1 << 20
"""Characters of what a call prints that go to the grader."""
MAX_FILE_BYTES: Final = 8 << 20
_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__pos__,
    float: float.__pos__,
    str: lambda value: str.__getitem__(value, slice(None)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    list: list.copy,
    dict: dict.copy,
    set: lambda value: set.__or__(value, set()),
    frozenset: lambda value: frozenset.__or__(value, frozenset()),
}
"""Plain classes, and how to copy what an object of a class below holds, without its own methods."""


ASYNCHRONOUS: Final = ("__await__", "__aiter__", "__aenter__")


class Lent:
    """Something of the grader's that was an argument: it can be called, and read in public."""

    def __init__(self, line: Agent, number: int) -> None:
        self.__dict__.update(_line=line, _number=number)

    def __call__(self, *args: object, **named: object) -> object:
        return self._do("call", list(args), named)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("getattr", name)

    def _do(self, what: str, *args: object) -> object:
        line, number = self.__dict__["_line"], self.__dict__["_number"]
        return line.question(what, number, *args)


for _name in ("eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(Lent, f"__{_name}__", lambda self, other, what=_name: self._do(what, other))
for _name in ("len", "iter", "next", "str", "repr", "hash", "bool", "int", "float", "abs", "neg"):
    setattr(Lent, f"__{_name}__", lambda self, what=_name: self._do(what))
for _name in ("getitem", "contains", "setitem", "delitem"):
    setattr(Lent, f"__{_name}__", lambda self, *args, what=_name: self._do(what, *args))


class Echo(io.TextIOBase):
    """Stands for a stream of the sample: what it prints goes to the grader with the answer."""

    def __init__(self, name: str, real: Any) -> None:
        self._name, self._real = name, real
        self.kept: list[str] = []
        self._left = MAX_PRINTED

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._real.fileno())

    @property
    def buffer(self) -> Any:
        return _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._left > 0:
            self.kept.append(text[: self._left])
            self._left -= len(text)
            self._real.write(text)
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def taken(self) -> str:
        """Return what was printed since it was asked last."""
        text = "".join(self.kept)
        self.kept.clear()
        self._left = MAX_PRINTED
        return text


class _Bytes:
    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def write(self, data: bytes) -> int:
        self._echo.write(bytes(data).decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        self._echo.flush()


class Input(io.TextIOBase):
    """Stands for the sample's standard input: it is the grader's, as a test replaced it."""

    def __init__(self, line: Agent) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        return str(self._line.question("stdin", "readline", -1 if size is None else size))

    def read(self, size: int | None = -1) -> str:
        return str(self._line.question("stdin", "read", -1 if size is None else size))

    def __iter__(self) -> Any:
        return iter(self.readline, "")


class Followed:
    """A container whose contents the grader follows."""

    def __init__(self, container: Any) -> None:
        self.container = container


class Agent(talking.Line):
    """The sample's end of the line."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.module: Any = types.ModuleType("solution")
        self._held: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._plain: dict[int, Any] = {}
        """What the grader last saw of held containers."""
        self._loop: Any = None
        self._replaced: dict[str, Any] = {}
        """What names stood for before a test replaced them."""

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
        try:
            value = getattr(self, f"do_{what}")(*arguments)
            handed = arguments[1] if what == "call" else []
            same = [index for index, one in enumerate(handed) if one is value]
            is_container = talking.is_container(value) and same
            reply = ["gave", ["argument", same[0]] if is_container else self.pack(value)]
        except talking.LeftError:
            raise
        except BaseException as error:  # noqa: BLE001 - the test may expect it
            reply = ["raised", self.pack_exception(error)]
        after = [self.pack(one) for one in _containers(arguments)]
        return [*reply, self.printed(), self._news(), after]

    def printed(self) -> list[str]:
        """Return what was printed since the last message."""
        return [one.taken() if isinstance(one, Echo) else "" for one in (sys.stdout, sys.stderr)]

    def _news(self) -> list[Any]:
        """Return what containers that the grader knows hold by now, where that changed."""
        found = []
        for number, before in list(self._plain.items()):
            now = self._base(self._held[number])
            if now != before:
                self._plain[number] = now
                found.append([number, now])
        return found

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
            exec(compile(source, path, "exec"), module.__dict__)
        return self.do_names()

    def do_names(self) -> list[str]:
        return [name for name in vars(self.module) if isinstance(name, str)]

    def do_name(self, name: str) -> object:
        """Return what a name stands for; the grader follows what a container holds later."""
        value = getattr(self.module, name)
        return Followed(value) if type(value) in {list, dict, set} else value

    def do_setname(self, name: str, value: object) -> None:
        """Have a name stand for something of the test, until that is taken back."""
        if hasattr(self.module, name):
            self._replaced.setdefault(name, getattr(self.module, name))
        setattr(self.module, name, value)

    def do_delname(self, name: str) -> None:
        if name in self._replaced:
            setattr(self.module, name, self._replaced.pop(name))
        else:
            delattr(self.module, name)

    def do_call(self, called: Any, args: list[Any], named: dict[str, Any]) -> object:
        return called(*args, **named)

    def do_getattr(self, owner: object, name: str) -> object:
        return getattr(owner, name)

    def do_setattr(self, owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)

    def do_delattr(self, owner: object, name: str) -> None:
        delattr(owner, name)

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

    def do_operate(self, name: str, *args: Any) -> object:
        return (getattr(operator, name, None) or getattr(builtins, name))(*args)

    def do_send(self, generator: Any, value: object) -> object:
        return generator.send(value)

    def do_class(self, value: object) -> object:
        return type(value)

    def do_dir(self, value: object) -> list[str]:
        return dir(value)

    def do_doc(self, value: object) -> list[Any]:
        return [getattr(value, name, None) for name in ("__name__", "__doc__")]

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

    def do_subclass(self, base: Any, name: str, methods: dict[str, Any]) -> object:
        """Return a class below one of the sample's whose methods are the grader's."""

        def calling(lent: Any) -> Callable[..., object]:
            return lambda *args, **named: lent(*args, **named)  # noqa: PLW0108 - it binds `self`

        body = {
            key: calling(value) if isinstance(value, Lent) else value
            for key, value in methods.items()
        }
        return type(base)(name, (base,), body)

    def do_new(self, kind: Any) -> object:
        return kind.__new__(kind)

    def do_environ(self, environ: dict[str, str], cwd: str) -> None:
        """Have the environment and the directory be those of the test."""
        os.environ.clear()  # noqa: TID251 - the sample's own
        os.environ.update(environ)  # noqa: TID251 - the sample's own
        if cwd:
            pathlib.Path(cwd).mkdir(parents=True, exist_ok=True)
            os.chdir(cwd)

    def do_put(self, files: dict[str, Any]) -> None:
        """Write files that an argument names; None is a directory."""
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
                if room > 0:
                    found[str(place)] = data
        return found

    # ---- what is no plain data ----------------------------------------------------------------

    def hold(self, value: object) -> Any:
        if isinstance(value, Followed):
            value = value.container
        if isinstance(value, Lent):
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
        number = self._number(value)
        base = self._base(value)
        if isinstance(value, list | dict | set):
            self._plain[number] = base
        mine = self.module.__name__
        kinds = [self._number(one) for one in type(value).__mro__ if one.__module__ == mine]
        fields = list(getattr(type(value), "_fields", ())) if isinstance(value, tuple) else []
        own = value.__name__ if isinstance(value, type | types.FunctionType) else ""
        names = [type(value).__name__, own]
        is_class = isinstance(value, type)
        is_async = any(hasattr(type(value), name) for name in ASYNCHRONOUS)
        return ["held", number, is_class, kinds, names, base, fields, is_async]

    def _number(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._held)
            self._held.append(value)
        return self._numbers[id(value)]

    def _base(self, value: object) -> Any:
        """Return the plain data that a value of a class below a plain one holds."""
        for base, copied in _BASES.items():
            if isinstance(value, base):
                return self.pack(copied(value))
        return None

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
        parts = [self.pack(error.args), self.pack(own), text]
        return ["raised", self.pack_class(type(error)), *parts, self._number(error)]

    def take(self, kind: str, parts: list[Any]) -> Any:
        match kind:
            case "yours":
                return self._held[parts[0]]
            case "lent":
                return Lent(self, parts[0])
            case "module":
                return self.module
            case "builtin":
                return getattr(builtins, parts[0])
            case "error":
                found = getattr(builtins, parts[0], RuntimeError)
                return found(*parts[1])
            case _:
                raise ValueError(kind)


def _containers(args: Any) -> list[Any]:
    """Return what a call may have changed of its arguments."""
    return [one for one in args if talking.is_container(one)]


def main() -> None:
    """Answer until the grader is done."""
    line = Agent(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(_STDERR, 1)
    sys.stdout = Echo("stdout", sys.__stdout__)
    sys.stderr = Echo("stderr", sys.__stderr__)
    sys.stdin = Input(line)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as where packages are
    builtins.input = lambda prompt="", /: line.question("input", prompt)
    for name in ("talking",):
        sys.modules.pop(name, None)
    try:
        line.serve()
    except talking.LeftError as left:
        os.write(_STDERR, f"{left}\n".encode(errors="replace"))
        os._exit(0)


if __name__ == "__main__":
    main()

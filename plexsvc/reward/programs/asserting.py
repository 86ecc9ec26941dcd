"""Script that asserts something of `solution.py`, which runs in a child apart, in one sandbox.

Standard input has a word and, from the second line on, the assertion. The word is printed if the
assertion holds. The child sees neither: it is asked for names, calls and operators, and answers
with plain data (copied, and compared here) or with an object that stays there (`Remote`). So it
can answer wrongly, but not say what is right. What is handed to it and is no plain data, such as a
function, is *lent*: it stays here, and the child may call it, and read public attributes of what a
class of Python made. A list, dict or set that a call changes is changed here, too. Modules of the
standard library that an assertion names are this process's own. The script imports nothing of
this package, because it is copied; `unit_testing.py` uses it beside.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NoReturn, TextIO

PR_SET_DUMPABLE: Final = 4
_STDERR: Final = 2
_PLAIN: Final[dict[str, Callable[[Any], Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": bytes,
    "bytearray": bytearray,
    "complex": lambda parts: complex(*parts),
    "Fraction": lambda parts: Fraction(*parts),
    "Decimal": lambda parts: Decimal(*parts),
    "dict": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
}
_COPIED: Final = (
    *(list, tuple, set, frozenset, bytes, bytearray, complex, Fraction, Decimal, dict),
)
_OPERATORS: Final = (
    *("len", "bool", "iter", "next", "str", "repr", "abs", "int", "float", "getitem", "contains"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "invert", "and_", "or_"),
    *("xor", "setitem", "delitem", "hash"),
)
_REFLECTED: Final = ("add", "sub", "mul", "truediv")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_LENT: Final = {"call", "getattr", *_OPERATORS, *_COMPARISONS}
"""What the child may do with what it is lent."""

Load = Callable[[], dict[str, Any]]


class LeftError(Exception):
    """The solution's process has ended."""


class Remote:
    """An object in the other process."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number

    def __call__(self, *arguments: object, **named: object) -> Any:  # noqa: ANN401
        """Call it there."""
        return self._line.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of it."""
        if name.startswith("_pytest") or name in {"_line", "_number"}:
            raise AttributeError(name)
        return self._line.ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Change an attribute of it."""
        if name in {"_line", "_number"}:
            object.__setattr__(self, name, value)
        else:
            self._line.ask("setattr", self, name, value)

    def __instancecheck__(self, instance: object) -> bool:
        """Return whether it is the class of something."""
        return bool(self._line.ask("isinstance", instance, self))

    def __enter__(self) -> Any:  # noqa: ANN401
        """Enter it as a context."""
        return self._line.ask("getattr", self, "__enter__")()

    def __exit__(self, *raised: object) -> None:
        """Leave it as a context; what was raised stays here."""
        self._line.ask("getattr", self, "__exit__")(None, None, None)


def _operate(name: str) -> Callable[..., Any]:
    return lambda self, *others: self._line.ask(name, self, *others)


def _compare(name: str) -> Callable[..., Any]:
    """Have the child compare what it holds, never with what is plain: that would be told it."""
    return lambda self, other: (
        self._line.ask(name, self, other) if isinstance(other, Remote) else NotImplemented
    )


def _reflect(name: str) -> Callable[..., Any]:
    return lambda self, other: self._line.ask(name, other, self)


for _name in _OPERATORS:
    setattr(Remote, f"__{_name.strip('_')}__", _operate(_name))
for _name in _REFLECTED:
    setattr(Remote, f"__r{_name}__", _reflect(_name))
for _name in _COMPARISONS:
    setattr(Remote, f"__{_name}__", _compare(_name))


class Line:
    """One end of the line between the two; while it waits for an answer, it answers."""

    def __init__(self, ours: int, theirs: int, names: dict[str, Any] | None = None) -> None:
        """Take the two descriptors; whoever has the names of the solution does all it is asked."""
        self._in = os.fdopen(ours, "r")
        self._out = os.fdopen(theirs, "w")
        self._names = names
        self._held: list[object] = []
        self._classes: dict[type, int] = {}
        """Of exceptions here: their places in `_held`."""
        self._known: dict[int, type] = {}
        """What stands here for classes of exceptions there."""

    def ask(self, what: str, *arguments: object) -> Any:  # noqa: ANN401
        """Return the other's answer.

        Raises:
            LeftError: when the other has ended.
            Exception: what was raised there, or what stands for it.
        """
        self._send([what, *map(self._encode, arguments)])
        while True:
            kind, *rest = json.loads(self._read())
            if kind == "raised":
                raise self._raised(*rest)
            if kind == "gave":
                answer, *changed = map(self._decode, rest)
                for argument, now in zip(_containers(what, arguments), changed, strict=True):
                    _change(argument, now)
                return answer
            self._answer(kind, rest)

    def serve(self) -> NoReturn:
        """Answer until nobody asks."""
        while True:
            what, *arguments = json.loads(self._read())
            self._answer(what, arguments)

    def _answer(self, what: str, encoded: list[Any]) -> None:
        try:
            arguments = [self._decode(one) for one in encoded]
            answer = self._do(what)(*arguments)
            reply = ["gave", *map(self._encode, (answer, *_containers(what, arguments)))]
        except LeftError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the assertion may expect it
            reply = ["raised", self._encode(type(error)), [str(one) for one in error.args]]
        self._send(reply)

    def _do(self, what: str) -> Callable[..., Any]:
        if self._names is None and what not in _LENT:
            raise PermissionError(f"{what}: what is lent can be called, compared and read")
        known: dict[str, Callable[..., Any]] = {
            "name": self._name,
            "names": lambda: list(self._names or ()),
            "call": lambda called, arguments, named: called(*arguments, **named),
            "getattr": getattr if self._names is not None else _public,
        }
        return known.get(what) or getattr(operator, what, None) or getattr(builtins, what)

    def _name(self, name: str) -> Any:  # noqa: ANN401
        if name not in (self._names or {}):
            raise NameError(f"name {name!r} is not defined")
        return (self._names or {})[name]

    def _raised(self, kind: object, arguments: list[str]) -> BaseException:
        """Return an exception as it was raised there, or one that says what it was."""
        found = self._decode(kind)
        if isinstance(found, type) and issubclass(found, Exception | SystemExit):
            with contextlib.suppress(TypeError):  # it takes other arguments
                return found(*map(str, arguments))
        return RuntimeError(f"{found}: {arguments}")

    def _read(self) -> str:
        line = self._in.readline()
        if not line:
            raise LeftError("the solution has left")
        return line

    def _send(self, message: object) -> None:
        try:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()
        except BrokenPipeError:
            raise LeftError("the solution has left") from None

    def _encode(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, _COPIED):
            return [_kind(value), *map(self._encode, _parts(value))]
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._encode_class(value)
        if isinstance(value, Remote):
            return ["yours", value._number]  # noqa: SLF001 - this module's
        self._held.append(value)
        return ["mine", len(self._held) - 1]

    def _encode_class(self, value: type) -> object:
        """Return a class of exceptions by its name, or by its place and its bases."""
        if getattr(builtins, value.__name__, None) is value:
            return ["builtin", value.__name__]
        if value in self._known.values():
            return ["yours", next(at for at, one in self._known.items() if one is value)]
        if value not in self._classes:
            self._classes[value] = len(self._held)
            self._held.append(value)
        bases = [one for one in value.__bases__ if issubclass(one, BaseException)]
        return ["class", self._classes[value], value.__name__, *map(self._encode_class, bases)]

    def _decode(self, value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, list):
            return value
        kind, *parts = value
        match kind:
            case "mine":
                return Remote(self, int(parts[0]))
            case "yours":
                return self._held[parts[0]]
            case "builtin":
                return _builtin_exception(parts[0])
            case "class":
                return self._stand_in(*parts)
            case _:
                return _PLAIN[kind]([self._decode(one) for one in parts])

    def _stand_in(self, number: int, name: str, *bases: object) -> type:
        """Return the class here that stands for one of exceptions there."""
        if number not in self._known:
            self._known[number] = type(str(name), tuple(map(self._decode, bases)), {})
        return self._known[number]


def _builtin_exception(name: str) -> type[BaseException]:
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    raise ValueError(f"{name} is no exception")


def _public(lent: object, name: str) -> Any:  # noqa: ANN401
    """Return an attribute of what a class of Python made: those of functions and frames tell all.

    Raises:
        AttributeError: for every other.
    """
    if name.startswith("_") or type(lent).__module__ in {"builtins", "types"}:
        raise AttributeError(f"{name} of a {type(lent).__name__} is not lent")
    return getattr(lent, name)


def _containers(what: str, arguments: Sequence[Any]) -> list[Any]:
    """Return what a call may have changed of its arguments."""
    if what != "call":
        return []
    _, positional, named = arguments
    return [
        one for one in (*positional, *named.values()) if type(one) in {list, dict, set, bytearray}
    ]


def _change(container: Any, now: Any) -> None:  # noqa: ANN401
    """Give a container the contents that it has there."""
    if container != now:
        container.clear()
        (container.extend if isinstance(container, list | bytearray) else container.update)(now)


def _kind(value: object) -> str:
    return next(one.__name__ for one in type(value).__mro__ if one.__name__ in _PLAIN)


def _parts(value: Any) -> Iterable[object]:  # noqa: ANN401
    match value:
        case Decimal():
            return [str(value)]
        case Fraction():
            return [value.numerator, value.denominator]
        case complex():
            return [value.real, value.imag]
        case dict():
            return [item for pair in value.items() for item in pair]
        case _:
            return value  # type: ignore[no-any-return]


def start_solution(load: Load) -> Line:
    """Return the line to a child that has loaded the solution, or is about to."""
    asked, answered = os.pipe(), os.pipe()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the child may not look into this process
    if os.fork():
        os.close(asked[0])
        os.close(answered[1])
        return Line(answered[0], asked[1])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(_STDERR, 1)
    ours = os.dup2(asked[0], _STDERR + 1), os.dup2(answered[1], _STDERR + 2)
    os.closerange(_STDERR + 3, 1 << 16)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        names = load()
        Line(*ours, names).serve()
    except LeftError:
        pass
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(1)


def run_solution() -> dict[str, Any]:
    """Return the names that the solution defines."""
    names: dict[str, Any] = {"__name__": "solution"}
    with open("solution.py") as file:  # noqa: PTH123 - without importing more
        exec(compile(file.read(), "solution.py", "exec"), names)
    return names


def names_of(assertion: ast.AST, line: Line) -> Iterator[tuple[str, Any]]:
    """Yield what an assertion names, each as it is here or in the solution."""
    for node in ast.walk(assertion):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            if node.id in sys.stdlib_module_names:
                yield node.id, importlib.import_module(node.id)
            else:
                try:
                    yield node.id, line.ask("name", node.id)
                except NameError:
                    continue  # the assertion's own


def main() -> None:
    """Print the word if the assertion holds."""
    line = start_solution(run_solution)
    own: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(_STDERR, 1)
    word, text = sys.stdin.readline(), sys.stdin.read()
    assertion = ast.parse(text if text.startswith("assert") else f"assert {text}")
    code = compile(assertion, "assertion", "exec")
    exec(code, dict(names_of(assertion, line)))
    own.write(word)
    own.flush()


if __name__ == "__main__":
    main()

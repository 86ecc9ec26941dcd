"""Script that asserts something of `solution.py`, which runs in a child apart, in one sandbox.

Standard input has a word and, from the second line on, the assertion. The word is printed if the
assertion holds. The child sees neither: it is asked for names, calls and operators, and answers
with plain data (copied, and compared here) or with an object that stays there (`Remote`). So it
can answer wrongly, but not say what is right. Modules of the standard library that an assertion
names are this process's own. An assertion that hands over what is no plain data, such as a
function, runs in one process with the solution instead. The script imports nothing of this
package, because it is copied.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator
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
}
_OPERATORS: Final = (
    *("len", "bool", "iter", "next", "str", "repr", "abs", "int", "float", "getitem", "contains"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "invert", "and_", "or_"),
    *("xor", "isinstance"),
)
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")


class NotPlainError(Exception):
    """A value that cannot be copied into the child."""


class Remote:
    """An object in the child."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number

    def __call__(self, *arguments: object, **named: object) -> Any:  # noqa: ANN401
        """Call it there."""
        return self._line.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of it."""
        return self._line.ask("getattr", self, name)

    def __instancecheck__(self, instance: object) -> bool:
        """Return whether it is the class of something."""
        return bool(self._line.ask("isinstance", instance, self))


def _operate(name: str) -> Callable[..., Any]:
    return lambda self, *others: self._line.ask(name, self, *others)


def _compare(name: str) -> Callable[..., Any]:
    """Have the child compare what it holds, never with what is plain: that would be told it."""
    return lambda self, other: (
        self._line.ask(name, self, other) if isinstance(other, Remote) else NotImplemented
    )


for _name in _OPERATORS:
    setattr(Remote, f"__{_name.strip('_')}__", _operate(_name))
for _name in _COMPARISONS:
    setattr(Remote, f"__{_name}__", _compare(_name))


class Line:
    """One end of the line between the two."""

    def __init__(self, ours: int, theirs: int) -> None:
        self._in = os.fdopen(ours, "r")
        self._out = os.fdopen(theirs, "w")
        self._held: list[object] = []

    def ask(self, what: str, *arguments: object) -> Any:  # noqa: ANN401
        """Return the child's answer.

        Raises:
            NotPlainError: for an argument that cannot be copied.
            Exception: what was raised there, as far as it is Python's own.
        """
        self._send([what, *map(self._encode, arguments)])
        kind, answer, *rest = json.loads(self._read())
        if kind == "raised":
            names = (getattr(builtins, name, None) for name in answer)
            found = next(one for one in names if isinstance(one, type))
            raise found(*map(str, rest)) if issubclass(found, Exception) else RuntimeError(rest)
        return self._decode(answer, far=True)

    def serve(self, names: dict[str, Any]) -> NoReturn:
        """Answer until nobody asks."""
        known: dict[str, Callable[..., Any]] = {
            "name": lambda name: names[name] if name in names else _no_name(name),
            "call": lambda called, arguments, named: called(*arguments, **named),
        }
        while True:
            what, *arguments = json.loads(self._read())
            try:
                do = known.get(what) or getattr(operator, what, None) or getattr(builtins, what)
                answer = do(*(self._decode(one, far=False) for one in arguments))
                self._send(["gave", self._encode(answer, holds=True)])
            except Exception as error:  # noqa: BLE001 - the assertion may expect it
                kinds = [one.__name__ for one in type(error).__mro__]
                self._send(["raised", kinds, str(error)])

    def _read(self) -> str:
        return self._in.readline() or sys.exit("the solution has left")

    def _send(self, message: object) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def _encode(self, value: object, *, holds: bool = False) -> object:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Remote):
            return ["held", value._number]  # noqa: SLF001 - this module's
        if isinstance(value, complex | Fraction | Decimal):
            return [_kind(value), *_parts(value)]
        if isinstance(value, dict):
            items = [item for pair in value.items() for item in pair]
            return ["dict", *(self._encode(one, holds=holds) for one in items)]
        if isinstance(value, list | tuple | set | frozenset | bytes | bytearray):
            return [_kind(value), *(self._encode(one, holds=holds) for one in value)]
        if not holds:
            raise NotPlainError(type(value).__name__)
        self._held.append(value)
        return ["held", len(self._held) - 1]

    def _decode(self, value: Any, *, far: bool) -> Any:  # noqa: ANN401
        if not isinstance(value, list):
            return value
        kind, *parts = value
        if kind == "held":
            return Remote(self, int(parts[0])) if far else self._held[parts[0]]
        items = [self._decode(one, far=far) for one in parts]
        if kind == "dict":
            return dict(zip(items[::2], items[1::2], strict=True))
        return _PLAIN[kind](items)


def _kind(value: object) -> str:
    return next(one.__name__ for one in type(value).__mro__ if one.__name__ in _PLAIN)


def _parts(value: complex | Fraction | Decimal) -> list[object]:
    if isinstance(value, Decimal):
        return [str(value)]
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    return [value.real, value.imag]


def _no_name(name: str) -> NoReturn:
    raise NameError(f"name {name!r} is not defined")


def start_solution() -> Line:
    """Return the line to a child that has run the solution, or is about to."""
    asked, answered = os.pipe(), os.pipe()
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
        Line(*ours).serve(run_solution())
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
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the child may not look into this process
    line = start_solution()
    own: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(_STDERR, 1)
    word, text = sys.stdin.readline(), sys.stdin.read()
    assertion = ast.parse(text if text.startswith("assert") else f"assert {text}")
    code = compile(assertion, "assertion", "exec")
    try:
        exec(code, dict(names_of(assertion, line)))
    except NotPlainError:
        exec(code, run_solution())
    own.write(word)
    own.flush()


if __name__ == "__main__":
    main()

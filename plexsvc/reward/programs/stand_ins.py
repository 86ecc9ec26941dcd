"""Stand-ins in the process of a sample: what its grader lent it, and the streams of the process.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import functools
import io
from typing import Any, Final

MAX_PRINTED: Final = 1 << 20
"""Characters of what a call prints that go to the grader."""


class Lent:
    """Something of the grader's that was an argument: it can be called, and read in public."""

    def __init__(self, line: Any, number: int, name: object, doc: object) -> None:
        self.__dict__.update(_line=line, _number=number, __doc__=doc)
        if isinstance(name, str):
            self.__dict__.update(__name__=name, __qualname__=name)

    def __call__(self, *args: object, **named: object) -> object:
        return self._do("call", list(args), named)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("getattr", name)

    def __setattr__(self, name: str, value: object) -> None:
        self._do("setattr", name, value)

    def __delattr__(self, name: str) -> None:
        self._do("delattr", name)

    def __exit__(self, *error: object) -> object:
        return self._do("exit", *error[:2], None)

    def __await__(self) -> Any:
        yield from ()
        return self._do("await")

    def _do(self, what: str, *args: object) -> object:
        line, number = self.__dict__["_line"], self.__dict__["_number"]
        return line.question(what, number, *args)


class LentFunction(Lent):
    """A function of the grader's, which binds as one."""

    def __get__(self, instance: object, owner: object = None) -> object:
        return self if instance is None else functools.partial(self, instance)


for _name in ("eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(Lent, f"__{_name}__", lambda self, other, what=_name: self._do(what, other))
for _name in (
    *("len", "iter", "next", "str", "repr", "hash", "bool", "int", "float", "abs", "neg"),
    "enter",
):
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

    def __init__(self, line: Any) -> None:
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

"""Line between a grader and the process of a sample: questions, answers, and plain data as copies.

Both ends are scripts in sandboxes of their own (`grader_line.py`, `answering.py`), joined by two
pipes, so this module imports nothing of the package. A message is a line of JSON. Plain data is
copied exactly, by its kind; what is no plain data stays where it is and travels as a number. While
one end waits for an answer, it answers questions of the other, which may call what it was handed.

"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import os
import pathlib
import re
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from json import dumps, loads  # by name: a test may replace them in the module
from typing import Any, Final

MAX_MESSAGE: Final = 16 << 20
"""Characters of one message; a longer one ends the line."""

SMALL: Final = 1 << 53
"""Integers from here on travel in hexadecimal digits: decimal ones take quadratic time."""

Packed = Any
"""JSON: a text, a number, a truth value, None, or a list of a kind and its parts."""

TUPLES: Final[dict[str, Callable[[Any], Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_BY_ARGUMENTS: Final[dict[type, Callable[[Any], Iterable[object]]]] = {
    complex: lambda value: (value.real, value.imag),
    fractions.Fraction: lambda value: (value.numerator, value.denominator),
    decimal.Decimal: lambda value: (str(value),),
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step),
    dt.date: lambda value: (value.year, value.month, value.day),
    dt.time: lambda value: (*_clock(value), _zone(value)),
    dt.datetime: lambda value: (
        value.year,
        value.month,
        value.day,
        *_clock(value),
        _zone(value),
    ),
    dt.timedelta: lambda value: (value.days, value.seconds, value.microseconds),
    dt.timezone: lambda value: (value.utcoffset(None), value.tzname(None)),
    pathlib.PosixPath: lambda value: (str(value),),
    pathlib.PurePosixPath: lambda value: (str(value),),
    uuid.UUID: lambda value: (str(value),),
    re.Pattern: lambda value: (value.pattern, value.flags),
}
"""Classes whose objects are made of a few plain arguments."""

_MADE_BY: Final = {one.__name__: one for one in _BY_ARGUMENTS} | {"Pattern": re.compile}
_MAPPINGS: Final = (dict, collections.OrderedDict, collections.Counter)
_EMPTY: Final[dict[Any, Any]] = {}
VIEWS: Final = (type(_EMPTY.keys()), type(_EMPTY.items()), type(_EMPTY.values()))
FACTORIES: Final = (None, list, dict, set, int, float, str, bool, tuple)
"""Of a `defaultdict` that is plain data."""
CONTAINERS: Final = (list, dict, set, bytearray, collections.deque)
"""Of arguments, what a call may change."""


class LeftError(BaseException):
    """The other end is gone, or no longer makes sense. Nothing that is judged catches it."""


def _clock(value: Any) -> tuple[int, ...]:
    return (value.hour, value.minute, value.second, value.microsecond)


def _zone(value: Any) -> object:
    offset = value.utcoffset()
    return None if offset is None else dt.timezone(offset)


class MessageLine(ABC):
    """One end of the line. `hold` packs what is no plain data, `take` unpacks it."""

    def __init__(self, into: int, out: int) -> None:
        """Read from one descriptor, write to the other."""
        self._in = os.fdopen(into, "r", encoding="utf-8", newline="\n")
        self._out = os.fdopen(out, "w", encoding="utf-8", newline="\n")
        if hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(0)

    @abstractmethod
    def hold(self, value: object) -> Packed:
        """Return what stands for a value that stays here."""

    @abstractmethod
    def take(self, kind: str, parts: list[Packed]) -> Any:
        """Return what stands here for a value of the other end, or of this one that came back."""

    @abstractmethod
    def answer(self, what: str, parts: list[Packed]) -> Packed:
        """Return the answer to a question of the other end."""

    def ask(self, what: str, *parts: Packed) -> Packed:
        """Return the other end's answer, which is packed.

        Raises:
            LeftError: when the other end is gone.
        """
        self.send([what, *parts])
        while True:
            kind, *rest = self.read()
            if kind == "answer":
                return rest
            self.send(["answer", *self.answer(str(kind), rest)])

    def read(self) -> list[Packed]:
        """Return the next message."""
        try:
            text = self._in.readline(MAX_MESSAGE)
            message = loads(text) if text.endswith("\n") else None
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, list) or not message:
            raise LeftError("the other process has left")
        return message

    def send(self, message: list[Packed]) -> None:
        """Write a message."""
        try:
            self._out.write(dumps(message) + "\n")
            self._out.flush()
        except (OSError, RecursionError):
            raise LeftError("the other process has left") from None

    def pack(self, value: Any) -> Packed:
        """Return a value as JSON: a copy if it is plain data, else what `hold` makes of it."""
        kind = type(value)
        if value is None or kind in {bool, str, float} or (kind is int and abs(value) < SMALL):
            return value
        if kind is int:
            return ["int", hex(value)]
        if kind.__name__ in TUPLES and TUPLES[kind.__name__] is kind:
            return [kind.__name__, *map(self.pack, value)]
        if kind in _MAPPINGS:
            return [kind.__name__, *(self.pack(one) for item in value.items() for one in item)]
        if kind is collections.defaultdict and value.default_factory in FACTORIES:
            factory = getattr(value.default_factory, "__name__", None)
            items = (self.pack(one) for item in value.items() for one in item)
            return ["defaultdict", factory, *items]
        if kind is collections.deque:
            return ["deque", value.maxlen, *map(self.pack, value)]
        if kind in {bytes, bytearray}:
            return [kind.__name__, value.hex()]
        if kind in _BY_ARGUMENTS:
            return [kind.__name__, *map(self.pack, _BY_ARGUMENTS[kind](value))]
        if kind in VIEWS:
            return [kind.__name__, *map(self.pack, value)]
        if kind in {type(Ellipsis), type(NotImplemented)}:
            return ["constant", str(value)]
        if kind.__module__ == "numpy":
            dtype = getattr(value, "dtype", None)
            if dtype is None or isinstance(value, type) or dtype.kind not in "biufcSUMm":
                if type(value).__name__ == "ndarray":  # of objects
                    return [
                        "array",
                        "object",
                        list(value.shape),
                        *map(self.pack, value.ravel().tolist()),
                    ]
                return self.hold(value)
            shape = None if type(value).__name__ != "ndarray" else list(value.shape)
            return ["numpy", dtype.str, shape, value.tobytes().hex()]
        return self.hold(value)

    def unpack(self, packed: Packed) -> Any:
        """Return the value that JSON stands for.

        Raises:
            LeftError: if it stands for none.
        """
        if not isinstance(packed, list):
            return packed
        try:
            kind, *parts = packed
            return self._unpack(kind, parts)
        except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, re.error) as error:
            raise LeftError(f"a message makes no sense: {error!r}") from None

    def _unpack(self, kind: str, parts: list[Packed]) -> Any:
        if kind in TUPLES:
            return TUPLES[kind](map(self.unpack, parts))
        match kind:
            case "int":
                return int(parts[0], 16)
            case "defaultdict":
                pairs = self._unpack("dict", parts[1:])
                known = {getattr(one, "__name__", None): one for one in FACTORIES}
                return collections.defaultdict(known[parts[0]], pairs)
            case "dict" | "OrderedDict" | "Counter":
                pairs = zip(
                    map(self.unpack, parts[::2]), map(self.unpack, parts[1::2]), strict=True
                )
                return {"dict": dict}.get(kind, getattr(collections, kind, dict))(dict(pairs))
            case "dict_keys":
                return dict.fromkeys(map(self.unpack, parts)).keys()
            case "dict_items":
                return dict(map(self.unpack, parts)).items()
            case "dict_values":
                return dict(enumerate(map(self.unpack, parts))).values()
            case "deque":
                return collections.deque(map(self.unpack, parts[1:]), parts[0])
            case "bytes":
                return bytes.fromhex(parts[0])
            case "bytearray":
                return bytearray.fromhex(parts[0])
            case "constant":
                return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[parts[0]]
            case "numpy" | "array":
                import numpy as np

                if kind == "array":
                    made = np.empty(len(parts) - 2, dtype=object)
                    made[:] = [self.unpack(one) for one in parts[2:]]
                    return made.reshape(parts[1])
                dtype, shape, data = parts
                array = np.frombuffer(bytes.fromhex(data), dtype=np.dtype(dtype))
                return array[0] if shape is None else array.reshape(shape).copy()
            case _ if kind in _MADE_BY:
                return _MADE_BY[kind](*map(self.unpack, parts))
            case _:
                return self.take(kind, parts)


def is_container(value: object) -> bool:
    """Return whether a call may change an argument, in place."""
    return type(value) in CONTAINERS or type(value).__name__ == "ndarray"


def changed(before: Any, now: Any) -> None:
    """Give a container the contents that its copy has by now, in place, as far as they differ."""
    if type(before) is not type(now):
        return
    if isinstance(before, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            before[index] = _kept(old, new)
    elif isinstance(before, list | bytearray):
        before[:] = now
    elif isinstance(before, dict | set | collections.deque):
        if isinstance(before, dict):
            now = {
                key: _kept(before[key], new) if key in before else new for key, new in now.items()
            }
        before.clear()
        (before.extend if isinstance(before, collections.deque) else before.update)(now)
    elif type(before).__name__ == "ndarray" and before.shape == now.shape:
        before[...] = now


def _kept(old: Any, new: Any) -> Any:
    if is_container(old) and type(old) is type(new):
        changed(old, new)
        return old
    return new

"""Plain data inside objects of a sample: of classes below plain ones, and of Python's wrappers.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import types
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable
from typing import Any, Final

BASES: Final[dict[type, Callable[[Any], Any]]] = {
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
WRAPPED: Final[dict[type, Callable[[Any], Any]]] = {
    UserList: lambda value: list(value.data),
    UserDict: lambda value: dict(value.data),
    UserString: lambda value: str(value.data),
    ChainMap: lambda value: dict(ChainMap.items(value)),
    types.MappingProxyType: dict,
    types.SimpleNamespace: vars,
    memoryview: bytes,
    deque: lambda value: deque(deque.__iter__(value), value.maxlen),
    decimal.Decimal: decimal.Decimal,
    fractions.Fraction: fractions.Fraction,
    dt.datetime: lambda value: dt.datetime.combine(value.date(), value.timetz()),
    dt.date: lambda value: dt.date.fromordinal(value.toordinal()),
}
"""Classes of Python's whose objects equal plain data, and how to get that."""

PYTHONS: Final = frozenset({"builtins", "abc", "typing", "enum", "collections"})
"""Modules whose classes have operators that a plain copy has, too."""
_NAMES: Final = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
OPERATORS: Final = (
    *(f"__{prefix}{name}__" for name in _NAMES.split() for prefix in ("", "r")),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__call__", "__contains__", "__getitem__"),
    *("__len__", "__iter__", "__bool__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__"),
)
"""Methods of a class below a plain one that its copy asks for."""


def of(value: object, kinds: dict[type, Callable[[Any], Any]]) -> Any:
    """Return the plain data in an object of one of `kinds`; `NotImplemented` for any other."""
    copied = next((copied for kind, copied in kinds.items() if isinstance(value, kind)), None)
    return NotImplemented if copied is None else copied(value)

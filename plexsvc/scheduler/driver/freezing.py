"""Freezing of a core: its whole state as plain JSON, and a core that goes on from it.

Theory of operation. The core's records refer to each other: an operation is in its deployment's
line and in its WPG's hands. So each mutable thing becomes a *node*, numbered in the order in which
it is met, and is named by its number wherever it is met again. What never changes (frozen
dataclasses, tuples, enums, bytes) is written out in place, so equal states have equal bytes. As in
events, fields go by their names: one that is missing gets its default, an unknown one is ignored.

A node is `[kind, ...]`: `["list", items]`, `["dict", [key, value, ...]]`, else `[class, {field:
value}]`, with the items behind for a class that is a dictionary. A value is an atom of JSON,
`[number]` of a node, or `[kind, ...]`. Keys that are ids are packed: a job remembers thousands of
operations that are over. The timeline, which nothing is decided by and which is larger than all the
rest, begins anew.
"""

from __future__ import annotations

import base64
import importlib
import pkgutil
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

import msgspec

from plexsvc.errors import bad_request
from plexsvc.scheduler import core
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.timeline import Timeline

Plain = Any
"""What JSON has: atoms, lists, dictionaries by strings."""

ATOMS: Final = frozenset({type(None), bool, int, float, str})
SKIPPED: Final = "__orig_class__"
"""What `typing` leaves in the objects of generic classes."""
ANEW: Final[dict[type, tuple[str, ...]]] = {Timeline: ("next_index",)}
"""Classes whose instances begin anew, but for these attributes."""


def freeze(state: Scheduler) -> bytes:
    """Return the state of a core between two events; equal states give equal bytes.

    Raises:
        TypeError: a record holds what cannot be written down.
    """
    return msgspec.json.encode(_Freezer().run(state.cluster))


def thaw(body: bytes) -> Scheduler:
    """Return a core that goes on where a frozen one was.

    Raises:
        PlexError: `bad_request` for the state of a build that had other records.
    """
    try:
        cluster = _Thawer(msgspec.json.decode(body)).run()
    except (LookupError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise bad_request(
            f"the snapshot of a core cannot be read: {type(error).__name__}: {error}; read it with "
            "the build that wrote it"
        ) from error
    return Scheduler(limits=cluster.limits, epoch=cluster.turn.epoch, cluster=cluster)


class _Freezer:
    """Numbers what it meets; `run` once."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []

    def run(self, root: object) -> list[Plain]:
        self._value(root)
        nodes: list[Plain] = []
        while len(nodes) < len(self._met):  # a node's values are met, and numbered, on the way
            nodes.append(self._node(self._met[len(nodes)]))
        return nodes

    def _value(self, value: Any) -> Plain:
        kind: Any = type(value)
        if kind in ATOMS:
            return value
        if isinstance(value, Enum):
            return [kind.__name__, value.value]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is tuple:
            return ["tuple", [self._value(item) for item in value]]
        if _is_frozen(kind):
            return [kind.__name__, self._fields(value)]
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._met)
            self._met.append(value)
        return [number]

    def _node(self, value: Any) -> Plain:
        kind = type(value)
        if kind is list:
            return ["list", [self._value(item) for item in value]]
        if kind is set:
            return ["set", sorted(map(self._value, value), key=msgspec.json.encode)]
        if kind is deque:
            return ["deque", [self._value(item) for item in value], value.maxlen]
        items = self._items(value) if isinstance(value, dict) else None
        if kind is dict:
            return ["dict", items]
        if kind.__name__ not in _classes():
            raise TypeError(f"a record of the core holds {value!r}, of {kind}")
        return [kind.__name__, self._fields(value), *([] if items is None else [items])]

    def _fields(self, value: Any) -> dict[str, Plain]:
        kind: Any = type(value)
        names = _names(kind) or vars(value)
        return {name: self._value(getattr(value, name)) for name in names if name != SKIPPED}

    def _items(self, value: dict[Any, Any]) -> Plain:
        keys = list(value)
        if {type(key) for key in keys} == {bytes} and len({len(key) for key in keys}) == 1:
            packed = base64.b64encode(b"".join(keys)).decode()
            values = [self._value(each) for each in value.values()]
            return {"keys": packed, "length": len(keys[0]), "values": values}
        return [self._value(part) for pair in value.items() for part in pair]


class _Thawer:
    """Makes empty nodes, then fills them; `run` once."""

    def __init__(self, nodes: list[Plain]) -> None:
        self._nodes = nodes
        self._made = [_empty(node) for node in nodes]
        self._values: dict[str, Callable[[Any], Any]] = {
            "bytes": bytes.fromhex,
            "tuple": lambda items: tuple(map(self._value, items)),
        }

    def run(self) -> Any:
        for node, made in zip(self._nodes, self._made, strict=True):
            self._fill(made, node)
        return self._made[0]

    def _value(self, value: Plain) -> Any:
        if type(value) is not list:
            return value
        if len(value) == 1:
            return self._made[value[0]]
        kind, told = value
        make = self._values.get(kind)
        if make is not None:
            return make(told)
        known = _classes()[kind]
        if issubclass(known, Enum):
            return known(told)
        made = known.__new__(known)
        self._set_fields(made, told)
        return made

    def _fill(self, made: Any, node: Plain) -> None:
        kind, told, *rest = node
        match kind:
            case "list" | "deque":
                made.extend(map(self._value, told))
            case "set":
                made.update(map(self._value, told))
            case "dict":
                self._set_items(made, told)
            case _:
                self._set_fields(made, told)
                if isinstance(made, dict):
                    self._set_items(made, rest[0])

    def _set_fields(self, made: object, told: dict[str, Plain]) -> None:
        kind = type(made)
        if is_dataclass(kind):
            defaults = _defaults(kind)
            unknown = told.keys() - defaults.keys()
            told = {name: value for name, value in told.items() if name not in unknown}
            for name in defaults.keys() - told.keys():
                object.__setattr__(made, name, defaults[name]())
        # A record may be frozen: it is being made, not changed.
        for name, value in told.items():
            object.__setattr__(made, name, self._value(value))

    def _set_items(self, made: dict[Any, Any], told: Plain) -> None:
        # Past the rules of the class itself, which may drop the oldest or move one to the end.
        put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
        if isinstance(told, dict):
            raw, length = base64.b64decode(told["keys"]), told["length"]
            for at, value in enumerate(told["values"]):
                put(made, raw[at * length : (at + 1) * length], self._value(value))
            return
        values = map(self._value, told)
        for key in values:
            put(made, key, next(values))


def _empty(node: Plain) -> Any:
    kind, _, *rest = node
    match kind:
        case "list":
            return []
        case "set":
            return set()
        case "dict":
            return {}
        case "deque":
            return deque(maxlen=rest[0])
        case _:
            known = _classes()[kind]
            return known() if known in ANEW else known.__new__(known)


@cache
def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and bool(vars(kind)["__dataclass_params__"].frozen)


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Return the attributes that a class declares; none if its instances have a `__dict__`."""
    if kind in ANEW:
        return ANEW[kind]
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))


@cache
def _defaults(kind: type) -> dict[str, Callable[[], Any]]:
    """Return what makes the value of each field of a dataclass that a snapshot does not know."""

    def default(field: Field[Any]) -> Callable[[], Any]:
        if field.default_factory is not MISSING:
            return field.default_factory
        if field.default is not MISSING:
            return lambda: field.default

        def refuse() -> Any:
            raise LookupError(f"{kind.__name__} has no {field.name} there")

        return refuse

    return {field.name: default(field) for field in fields(kind)}


@cache
def _classes() -> dict[str, Any]:
    """Return the classes that the core's modules know, by name."""
    found: dict[str, Any] = {kind.__name__: kind for kind in (OrderedDict, Counter)}
    for info in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        for kind in vars(importlib.import_module(info.name)).values():
            if isinstance(kind, type) and kind.__module__.startswith("plex"):
                assert found.setdefault(kind.__name__, kind) is kind, f"two are called {kind}"
    return found

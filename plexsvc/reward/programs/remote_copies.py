"""Plain copies of a sample's objects whose class is below a plain one: data here, methods there.

It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plexsvc.reward.programs import remote
else:
    import remote

_COMPARING: Final = remote.SAYING | {"count", "index", "union", "intersection"}
"""Those of lists and sets that a plain copy has itself."""

_ASKED: Final = ("abs", "len", "bool")
_COPIED: Final = frozenset(
    f"__{name}__"
    for name in (
        *("call", "iter", "contains", "getitem", "eq", *remote.ORDER, *remote.UNARY, *_ASKED),
        *(one.strip("_") for one in remote.BINARY),
        *(f"r{one.strip('_')}" for one in remote.BINARY),
    )
)
"""Methods of Python's that a plain copy asks for, where its class defines them."""


def copy_class(
    base: type,
    name: str,
    fields: list[str],
    line: Any,
    number: int,
    *,
    operators: list[str],
) -> type:
    """Return a class of plain copies that have the sample's methods beside.

    `operators` are those methods of Python's that its class in the sample defines.
    """

    def attribute(self: Any, name: str) -> Any:
        if (
            name.startswith(remote.HIDDEN)
            or name in remote.OWN
            or (name.startswith("__") and name != "__name__")
        ):
            raise AttributeError(name)
        return line.do("getattr", self, name)

    def assign(self: Any, name: str, value: object) -> None:
        line.do("setattr", self, name, value)

    body: dict[str, Any] = {
        "__getattr__": attribute,
        "__setattr__": assign,
        "_is_far": True,
        "_line": line,
        "_far_line": line,
        "_far_number": number,
        "_is_mine": False,
    }
    if base in {list, dict, set}:
        for method in vars(base):  # what changes it is done in the sample, which tells its contents
            if not method.startswith("__"):
                body[method] = _method(base, method)
        for method in ("setitem", "delitem", "iadd", "ior"):
            if hasattr(base, f"__{method}__"):
                body[f"__{method}__"] = _operation(method)
    if base is dict and number >= 0:
        body["__missing__"] = _operation("getitem")
    body.update({name: property(operator.itemgetter(at)) for at, name in enumerate(fields)})
    if fields:
        body["_fields"] = tuple(fields)
        body["_asdict"] = lambda self: dict(zip(fields, self, strict=False))
    body["__copy__"] = lambda self: line.do("copy", self)
    body["__deepcopy__"] = lambda self, _: line.do("deepcopy", self)
    body["__repr__"] = body["__str__"] = _text
    body["__hash__"] = base.__hash__
    body.update({one: _of_copy(base, one.strip("_"), line) for one in operators if one in _COPIED})
    if "__eq__" in body:
        body["__ne__"] = lambda self, other: not self == other  # noqa: SIM201 - by its own method
    return type.__new__(remote.RemoteType if number >= 0 else type, name, (base,), body)


def _of_copy(base: type, name: str, line: Any) -> Callable[..., Any]:
    """Return a method of a plain copy for one of Python's that its class in the sample defines."""

    def order(self: Any, other: object) -> Any:
        if remote.number_of(other) is None:
            return getattr(base, f"__{name}__")(self, other)
        return line.do("eq", self, other) if name == "eq" else line.do("operate", name, self, other)

    def contains(self: Any, value: object) -> Any:
        if line.is_made(self):
            return line.do("operate", name, self, value)
        return getattr(base, "__contains__")(self, value)  # noqa: B009 - not every plain class has one

    def binary(operation: str) -> dict[str, Callable[..., Any]]:
        bare = operation.strip("_")
        return {
            bare: lambda self, other: line.of_copy(operation, base, self, other),
            f"r{bare}": lambda self, other: line.of_copy(operation, base, other, self),
        }

    methods: dict[str, Callable[..., Any]] = {
        "call": lambda self, *args, **named: line.call(self, args, named),
        "iter": lambda self: remote.Iterating(line.do("operate", "iter", self)),
        "contains": contains,
        **dict.fromkeys(("eq", *remote.ORDER), order),
        **{one: lambda self: line.do("operate", name, self) for one in (*remote.UNARY, *_ASKED)},
        "getitem": lambda self, key: line.do("operate", name, self, key),
    }
    for operation in remote.BINARY:
        methods |= binary(operation)
    return methods[name]


def _method(base: type, name: str) -> Callable[..., Any]:
    def call(self: Any, *args: object, **named: object) -> Any:
        if name in _COMPARING and not self._line.is_made(self):
            return getattr(base, name)(self, *args, **named)
        return self._line.do("getattr", self, name)(*args, **named)

    return call


def _operation(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._line.do("operate", name, self, *args)


def _text(self: Any) -> str:
    return str(self._line.do("operate", "str", self))

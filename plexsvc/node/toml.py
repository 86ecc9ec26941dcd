"""Configuration dataclasses written as TOML, for the processes that a parent starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from plexsvc.fixed import keys


def dumps(config: object) -> str:
    """Return a dataclass, or values by key, as TOML that `plexsvc.config.load` reads.

    None is left out.

    >>> from plexsvc.node.config import DeviceConfig
    >>> print(dumps(DeviceConfig(kind="train", bytes_total=64)), end="")
    kind = "train"
    bytes_total = 64
    memory = "cpu"
    """
    return "".join(f"{key} = {_value(value)}\n" for key, value in _items(config))


def _items(config: object) -> list[tuple[str, object]]:
    if isinstance(config, Mapping):
        return [(str(key), value) for key, value in config.items() if value is not None]
    assert dataclasses.is_dataclass(config), config
    known = keys(type(config))
    for field in dataclasses.fields(config):
        fixed = getattr(config, field.name)
        assert field.name in known or fixed == field.default, f"{field.name} is in no file"
    pairs = [(key, getattr(config, key)) for key in known]
    return [(key, value) for key, value in pairs if value is not None]


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return _quoted(str(value))
        case tuple() | list():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case _:
            return _table(_items(value))


def _quoted(text: str) -> str:
    """Return `text` as a TOML basic string: a JSON string, but for the one character between."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(items: list[tuple[str, object]]) -> str:
    inside = ", ".join(f"{_quoted(key)} = {_value(item)}" for key, item in items)
    return "{" + inside + "}"

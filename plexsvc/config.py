"""Configuration: one TOML file a process, into frozen dataclasses; unknown keys are refused."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from plexsvc.errors import PlexError, bad_request
from plexsvc.fixed import keys

T = TypeVar("T")


def load(path: Path, into: type[T]) -> T:
    """Read a TOML file into the dataclass `into`.

    Raises:
        PlexError: `bad_request`, naming the file and key, for what does not fit.
    """
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise bad_request(f"cannot read {path}: {error}") from error
    return parse(table, into, where=str(path))


def parse(table: Mapping[str, Any], into: type[T], *, where: str) -> T:
    """Return `into` filled from `table`; missing keys take their defaults.

    Raises:
        PlexError: `bad_request` for an unknown key, a missing one, a value of another type, or what
            the dataclass itself refuses.
    """
    hints = keys(into)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        raise bad_request(
            f"{where}: unknown key {unknown[0]!r}; it may hold {', '.join(sorted(hints))}"
        )
    values = {
        key: _value(value, hints[key], where=f"{where}.{key}") for key, value in table.items()
    }
    missing = [f.name for f in dataclasses.fields(into) if _is_required(f) and f.name not in values]  # type: ignore[arg-type]
    if missing:
        raise bad_request(f"{where}: {', '.join(missing)} must be given")
    try:
        return into(**values)
    except PlexError as error:
        raise PlexError(error.code, f"{where}: {error.message}", **error.facts) from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    has_factory = field.default_factory is not dataclasses.MISSING
    return field.default is dataclasses.MISSING and not has_factory


def _value(value: Any, hint: Any, *, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        hint = next(option for option in arguments if option is not type(None))
        return _value(value, hint, where=where)
    if origin in (tuple, dict):
        return _collection(value, origin, arguments, where=where)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return parse(value, hint, where=where)  # type: ignore[arg-type]
    return _scalar(value, hint, where=where)


def _collection(value: Any, origin: Any, arguments: tuple[Any, ...], *, where: str) -> Any:
    if origin is tuple and isinstance(value, list):
        return tuple(
            _value(item, arguments[0], where=f"{where}[{i}]") for i, item in enumerate(value)
        )
    if origin is dict and isinstance(value, Mapping):
        return {
            key: _value(item, arguments[1], where=f"{where}.{key}") for key, item in value.items()
        }
    raise bad_request(f"{where}: {value!r} is not {_TERMS[origin]}")


def _scalar(value: Any, hint: Any, *, where: str) -> Any:
    is_bool = isinstance(value, bool)
    if hint is float and isinstance(value, int) and not is_bool:
        value = float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(hint, type) or not isinstance(value, hint) or (hint is int and is_bool):
        raise bad_request(f"{where}: {value!r} is not {_TERMS.get(hint, 'a table')}")
    if isinstance(value, int | float) and not value >= 0:
        raise bad_request(f"{where}: {value!r} is below 0, or no number")
    return value


_TERMS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    Path: "a path",
    str: "a text in quotes",
    tuple: "a list",
}

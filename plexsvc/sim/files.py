"""Files of a simulation: JSON read into dataclasses, refused with file, line and field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from plexsvc.errors import bad_request

MOST: Final = 10**6
"""The largest count: of nodes, of cycles."""

Count: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]
CountOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
"""In seconds, 31 years."""
Rate: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9)]

_T = TypeVar("_T")
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One JSON object of a file: the whole of it, or a line."""

    path: Path
    text: str
    line: int = 1

    def data(self) -> dict[str, Any]:
        """Return the object.

        Raises:
            PlexError: `bad_request` with file and line.
        """
        try:
            data = json.loads(self.text, object_pairs_hook=_once, parse_constant=_no_number)
            json.dumps(data, ensure_ascii=False).encode()  # refuses half of a surrogate pair
        except (ValueError, RecursionError) as error:
            line = self.line + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
            raise bad_request(
                f"{self.path}, line {line}: not JSON ({error}); give one object",
                file=self.path,
                line=line,
            ) from error
        if not isinstance(data, dict):
            self.refuse("(line)", data, "one JSON object")
        return data

    def read(self, data: object, kind: type[_T], *, where: str = "") -> _T:
        """Return data, found at the field `where`, as a dataclass says it is; it knows all keys.

        Raises:
            PlexError: `bad_request` with file, line and field.
        """
        try:
            found = msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            why, _, at = str(error).partition(" - at `$")
            missing = re.search(r"missing required field `(\w+)`", why)
            steps = [at.strip("`."), missing[1] if missing else ""]
            field = ".".join(step for step in (where, *steps) if step).replace(".[", "[")
            value = "nothing" if missing else _value(data, at)
            self.refuse(field, value, "a value" if missing else why.removeprefix("Expected "))
        unknown = _unknown(data, msgspec.to_builtins(found))
        if unknown:
            field = f"{where}.{unknown}".strip(".").replace(".[", "[")
            self.refuse(field, "an unknown field", "none of that name")
        return found

    def refuse(self, field: str, found: object, wanted: str) -> NoReturn:
        """Refuse what was found in a field."""
        text = found if isinstance(found, str) and " " in found else repr(found)
        line = self.line + self._lines_before(field)
        raise bad_request(
            f"{self.path}, line {line}, field {field}: found "
            f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}, wanted {wanted}",
            file=self.path,
            line=line,
            field=field,
        )

    def _lines_before(self, field: str) -> int:
        """Return in which line the value of a field like `events[1].drain` stands, from 0."""
        at = 0
        for part in field.split("."):
            name, _, index = part.partition("[")
            found = self.text.find(f'"{name}"', at)
            if found < 0:
                break
            at = found
            for _ in range(int(index.rstrip("]")) + 1 if index else 0):
                at = max(at, self.text.find("{", at + 1))
        return self.text.count("\n", 0, at)


def text_of(path: Path) -> str:
    """Return a file's text.

    Raises:
        PlexError: `bad_request`, it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_request(
            f"{path} could not be read: {error}; give a UTF-8 file", file=path
        ) from error


def make_directory(out: Path, *, without: Sequence[str] = ()) -> None:
    """Make a directory for outputs, without those of an earlier run.

    Called before a run, so that no run is for nothing, and none that fails looks like the last one.

    Raises:
        PlexError: `bad_request`, there can be no such directory.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in without:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise bad_request(
            f"{out} cannot be a directory for outputs: {error}; name another", file=out
        ) from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object whose keys all differ: of two equal ones, which was meant?"""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"key {twice!r} comes twice")
    return dict(pairs)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _value(data: Any, path: str) -> object:
    """Return what is at a path like `.a[1].b`."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        data = data[name] if name else data[int(index)]
    return data


def _unknown(raw: object, known: object) -> str:
    """Return the path of the first key of `raw` that `known` has not; empty if there is none."""
    if isinstance(raw, Mapping) and isinstance(known, Mapping):
        for name, value in raw.items():
            below = _unknown(value, known[name]) if name in known else ""
            if name not in known or below:
                return f"{name}.{below}".strip(".").replace(".[", "[")
    if isinstance(raw, list) and isinstance(known, list):
        for at, (value, other) in enumerate(zip(raw, known, strict=True)):
            if below := _unknown(value, other):
                return f"[{at}].{below}"
    return ""

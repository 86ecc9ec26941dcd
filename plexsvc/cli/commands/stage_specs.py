"""Stages of reward programs as they are written on a command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plexclient.programs import Stage

FORM: Final = "NAME:RESOURCE=COUNT,timeout=TIME[,mem=BYTES][,untrusted]:COMMAND"
_TIMES: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse(text: str) -> Stage:
    """Return the stage that `text` describes, in the form `FORM`.

    Raises:
        PlexError: `bad_request` for any other text.

    >>> parse("run:cpu=1,timeout=60s,mem=2GiB:./run.py --fast").memory_bytes >> 30
    2
    """
    from plexclient.errors import bad_request
    from plexclient.programs import Stage

    name, _, rest = text.partition(":")
    limits, _, command = rest.partition(":")
    try:
        return Stage(name=name, command=command, **_limits(limits))
    except ValueError as error:
        raise bad_request(f"--stage {text!r}: {error}; give {FORM}") from error


def seconds(text: str) -> float:
    """Return a duration such as `90s`, `500ms` or `2m` in seconds.

    Raises:
        ValueError: for any other text.
    """
    return _amount(text, _TIMES, what="a time such as 60s")


def _limits(text: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for limit in filter(None, text.split(",")):
        given |= _limit(limit)
    for field, key in (("timeout_s", "timeout"), ("resource", "resource, such as cpu=1")):
        if field not in given:
            raise ValueError(f"it has no {key}")
    return given


def _limit(text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    if key == "untrusted" and not value:
        return {"is_untrusted": True}
    if key == "timeout":
        return {"timeout_s": seconds(value)}
    if key == "mem":
        return {"memory_bytes": int(_amount(value, _SIZES, what="a size such as 2GiB"))}
    return {"resource": key, "count": int(_amount(value, {"": 1}, what="a count"))}


def _amount(text: str, units: Mapping[str, float], *, what: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in units:
        raise ValueError(f"{text!r} is not {what}")
    return float(found[1]) * units[found[2]]

"""Checks of values that a caller gives, made before anything is sent."""

from __future__ import annotations

import math
from types import UnionType

from plexclient.errors import bad_request


def whole(name: str, value: float, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return `value` as an integer in `[least, most]`.

    Raises:
        PlexError: `bad_request` for anything else.

    >>> whole("n", 8)
    8
    """
    try:
        fits = not isinstance(value, bool) and int(value) == value and least <= value <= most
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise bad_request(f"{name}={value!r}: it must be an integer in [{least}, {most}]")
    return int(value)


def text(name: str, value: object) -> str:
    """Return `value`, a text that can be sent as UTF-8.

    Raises:
        PlexError: `bad_request` for anything else, half of a surrogate pair among it.

    >>> text("prompt 0", "7 + 8 =")
    '7 + 8 ='
    """
    if not isinstance(value, str):
        raise bad_request(f"{name} is {value!r:.40}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_request(
            f"{name} cannot be sent as UTF-8: character {error.start} is half of a surrogate pair"
        ) from error
    return value


def of_type(name: str, value: object, kind: type | UnionType, *, takes: str = "") -> None:
    """Refuse a `value` that is not of a class: of this package, unless what it `takes` is said.

    Raises:
        PlexError: `bad_request`.

    >>> of_type("batch", 7, int)
    """
    if not isinstance(value, kind):
        must = takes or f"a plex.{getattr(kind, '__name__', kind)}"
        raise bad_request(f"{name} is {value!r:.40}; it must be {must}", field=name)


def real(name: str, value: float, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `value` as a finite number in `[least, most]`.

    Raises:
        PlexError: `bad_request` for anything else.

    >>> real("top_p", 1, least=0, most=1)
    1.0
    """
    try:
        fits = math.isfinite(value) and least <= value <= most
    except (TypeError, OverflowError):
        fits = False
    if not fits:
        within = f" in [{least}, {most}]" if math.isfinite(least) or math.isfinite(most) else ""
        raise bad_request(f"{name}={value!r:.40}: it must be a finite number{within}")
    return float(value)

"""Range checks of numbers that a caller gives, made before anything is sent."""

from __future__ import annotations

import math

from plexclient.errors import ErrorCode, PlexError


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
        raise PlexError(
            ErrorCode.BAD_REQUEST, f"{name}={value!r}: it must be an integer in [{least}, {most}]"
        )
    return int(value)


def real(name: str, value: float, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `value` as a finite number in `[least, most]`.

    Raises:
        PlexError: `bad_request` for anything else.

    >>> real("top_p", 1, least=0, most=1)
    1.0
    """
    try:
        fits = math.isfinite(value) and least <= value <= most
    except TypeError:
        fits = False
    if not fits:
        raise PlexError(
            ErrorCode.BAD_REQUEST, f"{name}={value!r}: it must be a number in [{least}, {most}]"
        )
    return float(value)

"""Fields of a request's JSON: their values within bounds, or a refusal by the field's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from plexsvc.errors import bad_request

Asked = Mapping[str, Any]

MAX_INT: Final = 2**31 - 1
MAX_CHARS: Final = 2048
"""Of an id, a path or a name, which are kept."""


def bad(name: str, found: object, wanted: str) -> Exception:
    """Return the refusal of a field that holds something else than what is wanted."""
    field = re.split(r"[.\[]", name)[0]
    return bad_request(f"{name}: it must be {wanted}, not {found!r:.80}", field=field)


def text(asked: Asked, name: str, *, least: int = 1, most: int | None = MAX_CHARS) -> str:
    """Return a text that must be given, of so many characters; None: of any number.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    found = asked.get(name)
    if not isinstance(found, str) or len(found) < least:
        raise bad(name, found, "a text")
    if most is not None and len(found) > most:
        raise bad(name, found, f"a text of up to {most} characters")
    return found


def whole(
    asked: Asked, name: str, *, default: int | None = None, least: int = 0, most: int = MAX_INT
) -> int:
    """Return a whole number, or the default, whatever it is; without one it must be given.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    found = asked.get(name)
    if found is None and default is not None:
        return default
    if not is_whole(found, least=least, most=most):
        raise bad(name, found, f"a whole number from {least} to {most}")
    return found


def is_whole(found: Any, *, least: int = 0, most: int = MAX_INT) -> TypeGuard[int]:
    """Return whether a value is a whole number within bounds."""
    return isinstance(found, int) and not isinstance(found, bool) and least <= found <= most


def real(
    asked: Asked, name: str, *, default: float | None = None, least: float = 0, most: float = 1e6
) -> float:
    """Return a number, or the default, whatever it is; without one it must be given.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    found = asked.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, int | float) or isinstance(found, bool) or not least <= found <= most:
        raise bad(name, found, f"a number from {least:g} to {most:g}")
    return float(found)

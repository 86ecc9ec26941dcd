"""Fixed values of configuration classes: constants that tests may replace and no file may set.

A bound that nobody would tune stays beside the keys, with its reason, because the code that reads
it is given the whole configuration. Configuration files that name it are refused, and the reference
does not list it.
"""

from __future__ import annotations

import typing
from typing import Annotated, Final, TypeVar

_MARK: Final = "fixed"

T = TypeVar("T")

Fixed = Annotated[T, _MARK]
"""Type of a field that is a constant with a default: `max_gap: Fixed[int] = 64`."""


def keys(owner: type) -> dict[str, object]:
    """Return the types of a dataclass's fields by name, but for the fixed ones."""
    hints = typing.get_type_hints(owner, include_extras=True)
    plain = typing.get_type_hints(owner)
    is_fixed = {name for name, hint in hints.items() if _MARK in getattr(hint, "__metadata__", ())}
    return {name: hint for name, hint in plain.items() if name not in is_fixed}

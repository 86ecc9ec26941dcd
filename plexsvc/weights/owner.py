"""Owner of a checkpoint: the tenant that its mark of completeness names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from plexsvc.errors import ErrorCode, PlexError

COMPLETE: Final = ".complete"
"""Written last into a checkpoint: JSON with its files, and the tenant whose it is."""

MAX_MARK_BYTES: Final = 16 << 20


def check_owner(directory: Path, *, tenant: str, what: str) -> None:
    """Refuse a checkpoint of another tenant; one that names none, or no checkpoint, is anybody's.

    Raises:
        PlexError: `forbidden`; `bad_request` for a mark that cannot be read.
    """
    try:
        with (directory / COMPLETE).open("rb") as file:
            mark = json.loads(file.read(MAX_MARK_BYTES))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise PlexError(
            ErrorCode.BAD_REQUEST, f"{what} {directory}: its {COMPLETE} cannot be read ({error})"
        ) from error
    owner = mark.get("tenant", "") if isinstance(mark, dict) else ""
    if owner not in {"", tenant}:
        raise PlexError(
            ErrorCode.FORBIDDEN,
            f"{what} {directory} is a checkpoint of another tenant; use one of your own",
        )

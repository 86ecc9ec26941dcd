"""Owner of a checkpoint: the tenant that its mark of completeness names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError, bad_request

SEAL: Final = ".complete"
"""Written last into a checkpoint: JSON with its files, and the tenant whose it is."""

MAX_MARK_BYTES: Final = 64 << 20
QUICK_BYTES: Final = 256 << 10
"""Of a mark that is parsed; the owner stands at the end of a longer one."""

_OWNER: Final = re.compile(rb'"tenant": ("(?:[^"\\]|\\.){0,512}")\}\s*\Z')


def check_owner(directory: Path, *, tenant: str, what: str) -> None:
    """Refuse a checkpoint of another tenant; one that names none, or no checkpoint, is anybody's.

    Raises:
        PlexError: `forbidden`; `bad_request` for a mark that cannot be read.
    """
    try:
        owner = _owner(paths.read_bounded(directory / SEAL, most_bytes=MAX_MARK_BYTES))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise bad_request(f"{what} {directory}: its {SEAL} cannot be read ({error})") from error
    if owner not in {"", tenant}:
        raise PlexError(
            ErrorCode.FORBIDDEN,
            f"{what} {directory} is a checkpoint of another tenant; use one of your own",
        )


def _owner(mark: bytes) -> Any:
    if len(mark) <= QUICK_BYTES:
        found = json.loads(mark)
        return found.get("tenant", "") if isinstance(found, dict) else ""
    at_end = _OWNER.search(mark[-1024:])
    if at_end is None:
        raise ValueError("it ends with no tenant")
    return json.loads(at_end[1])

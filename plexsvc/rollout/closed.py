"""The file of spot devices and lent engines that operators closed: it survives the service."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.pool import SlotId


def read_closed(path: Path) -> frozenset[SlotId]:
    """Return the slots that the file names, none if there is no such file.

    Raises:
        PlexError: `bad_request` for a file that nobody here wrote.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _unreadable(path, "it is not a list of names")
    return frozenset(found)


def keep_closed(path: Path, closed: Iterable[SlotId]) -> None:
    """Write the slots in one step.

    Raises:
        PlexError: `disk_full`, with the file as it was.
    """
    unfinished = path.with_name(f".{path.name}")
    try:
        unfinished.write_text(json.dumps(sorted(closed)))
        unfinished.replace(path)
    except OSError as error:
        raise PlexError(
            ErrorCode.DISK_FULL,
            f"what is closed cannot be kept in {path} ({error}); nothing was changed. Make room "
            "and ask again",
        ) from error


def _unreadable(path: Path, because: str) -> PlexError:
    return PlexError(
        ErrorCode.BAD_REQUEST,
        f"{path}, the list of closed spot devices, cannot be read: {because}. Remove it, and close "
        "devices again with `plexctl instance drain`",
    )

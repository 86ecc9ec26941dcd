"""Registry of the shipped programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.programs import answers, code
from plexsvc.reward.programs.base import Program

PROGRAMS: Final[Mapping[str, Program]] = {
    program.name: program for program in (*answers.PROGRAMS, *code.PROGRAMS)
}


def find(name: str) -> Program:
    """Return a program.

    Raises:
        PlexError: `not_found`.
    """
    if name not in PROGRAMS:
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"there is no program {name[:128]!r}; `plexctl reward list` shows those that there "
            f"are: {', '.join(PROGRAMS)}",
        )
    return PROGRAMS[name]


def check_settings(program: Program, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a program does not take.

    Raises:
        PlexError: `bad_request`, naming the setting.
    """
    for name, value in settings.items():
        wanted = program.settings.get(name)
        if wanted is None:
            known = ", ".join(program.settings) or "none"
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"program {program.name} takes no setting {name[:128]!r}; it takes {known}",
            )
        kinds = (int, float) if wanted is float else (wanted,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"setting {name} of program {program.name} must be of type {wanted.__name__}, "
                f"not {type(value).__name__}",
            )

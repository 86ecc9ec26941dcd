"""Registry of the shipped programs, and what settings a program takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from plexsvc.errors import PlexError, bad_request, not_found
from plexsvc.reward.programs import answers, code, snippets
from plexsvc.reward.programs.base import Program

PROGRAMS: Final[Mapping[str, Program]] = {
    program.name: program for program in (*answers.PROGRAMS, *code.PROGRAMS, *snippets.PROGRAMS)
}


def no_such_program(name: str, own: Iterable[str]) -> PlexError:
    """Return `not_found` for a name that neither the service nor the tenant has."""
    return not_found(
        f"there is no program {name[:128]!r}; `plexctl reward list` shows those that there "
        f"are: {', '.join([*PROGRAMS, *own])}"
    )


def check_settings(program: Program, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a program does not take.

    Raises:
        PlexError: `bad_request`, naming the setting.
    """
    if program.settings is None:
        return
    for name, value in settings.items():
        wanted = program.settings.get(name)
        if wanted is None:
            known = ", ".join(program.settings) or "none"
            raise bad_request(
                f"program {program.name} takes no setting {name[:128]!r}; it takes {known}"
            )
        kinds = (int, float) if wanted is float else (wanted,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
            raise bad_request(
                f"setting {name} of program {program.name} must be of type {wanted.__name__}, "
                f"not {type(value).__name__}"
            )

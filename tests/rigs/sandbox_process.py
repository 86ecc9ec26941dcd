"""The sandbox in a process of its own, as workers have it: one thread, and no gRPC in it.

`python -m tests.rigs.sandbox_process [nobody]` serves calls by pickle on its standard streams, if
asked as the user nobody.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plexsvc.errors import PlexError
from plexsvc.reward.sandbox import kernel
from plexsvc.reward.sandbox.base import PeerCommand, Ran, StageLimits
from plexsvc.reward.sandbox.opening import open_sandbox


class SandboxProcess:
    """A `Sandbox` whose commands are run by another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def describe(self) -> str:
        """Return what isolates there."""
        return str(self._call("describe"))

    def is_available(self) -> bool:
        """Return whether anything does."""
        return bool(self._call("is_available"))

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes],
        stdin: bytes = b"",
        limits: StageLimits,
        keeps_files: bool = False,
        beside: PeerCommand | None = None,
    ) -> Ran:
        """Return how a command ended."""
        found = self._call(
            "run",
            list(argv),
            files=files,
            stdin=stdin,
            limits=limits,
            keeps_files=keeps_files,
            beside=beside,
        )
        assert isinstance(found, Ran)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()

    @property
    def zygote(self) -> int:
        """Return the process that commands are forked from."""
        place = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        (found,) = map(int, place.read_text().split())
        return found

    def _call(self, method: str, *arguments: object, **named: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((method, arguments, named), self._process.stdin)
        self._process.stdin.flush()
        found = pickle.load(self._process.stdout)
        if isinstance(found, tuple):
            raise PlexError(found[0], found[1])
        return found


@contextmanager
def sandbox_process(user: str = "", *, python: str = sys.executable) -> Iterator[SandboxProcess]:
    """Yield a sandbox that ends with the block."""
    command = [python, "-m", "tests.rigs.sandbox_process", *user.split()]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams) as process:
        sandbox = SandboxProcess(process)
        yield sandbox
        sandbox.close()


def become_nobody() -> None:
    """Become a user without rights, who can reach this Python wherever it is installed."""
    kernel.unshare(kernel.NEW_NS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    top = Path(*Path(sys.base_prefix).parts[:2])
    kernel.mount(str(top), "/mnt", "", kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("tmpfs", str(top), "tmpfs", 0, "mode=755")
    for entry in Path("/mnt").iterdir():
        if entry.is_dir() and not entry.is_symlink():
            (top / entry.name).mkdir()
            kernel.mount(str(entry), str(top / entry.name), "", kernel.MS_BIND | kernel.MS_REC)
    os.setgroups([])
    os.setresgid(65_534, 65_534, 65_534)
    os.setresuid(65_534, 65_534, 65_534)


def main() -> None:
    """Serve calls until the input ends."""
    if "nobody" in sys.argv:
        become_nobody()
    sandbox = open_sandbox()
    out = sys.stdout.buffer
    while True:
        try:
            method, arguments, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            found: object = getattr(sandbox, method)(*arguments, **named)
        except PlexError as error:
            found = (error.code, error.message)
        pickle.dump(found, out)
        out.flush()


if __name__ == "__main__":
    main()

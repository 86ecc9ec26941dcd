"""Protocol of sandboxes, and the limits of what runs in one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

PYC_HEADER_BYTES: Final = 16
"""What precedes the code in a compiled script."""

PYTHON: Final = (sys.executable, "-I", "-S")
"""A Python without packages. A command that begins so and goes on with a script does not wait for
an interpreter to start."""


ENDED: Final = "ended"
"""What ends a command when the one that it ran beside has ended: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """What one stage may use."""

    wall_us: int = 60_000_000
    memory_bytes: int = 512 << 20
    """Of all its processes together; each may map twice as much."""
    disk_bytes: int = 64 << 20
    """Of all files that it writes, and of what it leaves to the next stage."""
    output_bytes: int = 1 << 20
    """That it prints; what prints more is ended."""
    max_processes: int = 32
    """Processes and threads at once."""
    max_open_files: int = 128
    cpus: int = 1
    """Processors that its time is counted for: it may use so many times `wall_us`."""
    gpus: int = 0
    """GPUs that its worker holds for it. With any, what its processes map is not bounded: CUDA maps
    more than any memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCommand:
    """A command in a sandbox of its own, on the standard input and output of another.

    What one writes the other reads; they share nothing else.
    """

    argv: Sequence[str]
    files: Mapping[str, bytes]
    limits: StageLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command in a sandbox ended."""

    exit_code: int
    """Negative: the signal that killed it."""
    stdout: str
    stderr: str
    hit: str = ""
    """The limit that ended it: `wall`, `memory` or `output`; empty where none did."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The regular files that it left, by path below its directory."""
    run_us: int = 0
    beside: Ran | None = None
    """How the command beside it ended."""


class Sandbox(Protocol):
    """Runs commands apart from everything: no network, a read-only system, files that vanish."""

    def describe(self) -> str:
        """Return what isolates, or why nothing can and what to install."""

    def is_available(self) -> bool:
        """Return whether commands can be isolated here."""

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
        """Return how a command ended, with nothing of it left; `files` lie in its directory.

        With a command `beside` it there is no `stdin`, and the other is ended when it has ended.

        Raises:
            PlexError: `unavailable` when nothing isolates here, or setting up failed.
        """

    def close(self) -> None:
        """Give back what runs commands; nothing runs after."""

"""Sandbox of namespaces: own users, mounts, processes, network, IPC and host name.

The worker starts a zygote (`zygote.py`), which forks each command. This module is the worker's side
of a command: it feeds and reads it, and ends it at a limit. A zygote that dies takes its command
with it; what runs next fails with `unavailable`, and the worker is replaced.
"""

from __future__ import annotations

import marshal
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from plexsvc.errors import unavailable
from plexsvc.reward.sandbox import kernel, zygote
from plexsvc.reward.sandbox.base import ENDED, PYTHON, PeerCommand, Ran, StageLimits
from plexsvc.reward.sandbox.cgroups import CommandGroup, Groups

LOOK_US: Final = 50_000
"""How often the memory of a command's processes is looked at."""

START_S: Final = 10.0
"""How long a zygote may take to start."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CHUNK_BYTES: Final = 1 << 16
_LAST_PROCESSOR: Final = 36
"""Its place after the name in `/proc/PID/stat`."""


class NamespaceSandbox:
    """Runs commands in namespaces of their own. Use it from a process with one thread.

    Raises:
        ImportError: without the library that compiles the filter of system calls.
        PlexError: `unavailable` where the kernel gives no namespaces.
    """

    def __init__(self) -> None:
        instructions = kernel.compile_filter()
        self._groups: Groups | None = None
        try:
            self._groups = Groups()
            self._bounds = "cgroups (memory, pids, cpu)"
        except OSError as error:
            self._bounds = f"no cgroups, because {error.strerror or error}: memory is looked at"
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [*PYTHON, zygote.__file__, str(theirs.fileno()), str(os.getpid())]
        seen = {zygote.GPUS: os.environ.get(zygote.GPUS, "")}
        with theirs:
            self._zygote = subprocess.Popen(
                argv,
                pass_fds=(theirs.fileno(),),
                env=zygote.ENVIRONMENT | seen,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._line.send(instructions)
        self._line.settimeout(START_S)
        said = self._line.recv(_CHUNK_BYTES)
        if said != zygote.READY:
            self.close()
            why = said.decode(errors="replace") or "it ended before it was ready"
            raise unavailable(f"the sandbox's zygote did not start: {why}")

    def describe(self) -> str:
        """Return what isolates."""
        how = "root" if os.geteuid() == 0 else "unprivileged user namespaces"
        return (
            f"namespaces (user, mount, pid, net, ipc, uts, cgroup; as {how}), seccomp, rlimits, "
            f"{self._bounds}"
        )

    def is_available(self) -> bool:
        """Return True: making one fails where nothing isolates."""
        return True

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
        """Return how a command ended; nothing of it is left.

        Raises:
            PlexError: `unavailable` when the sandbox could not be set up.
        """
        watches: list[_CommandWatch] = []
        shared: list[dict[str, int]] = [{}, {}]
        if beside is not None:
            for reads, writes in ((0, 1), (1, 0)):
                shared[reads]["stdin"], shared[writes]["stdout"] = os.pipe()
        try:
            main = self._start(argv, files, limits, shared[0], stdin=stdin, keeps_files=keeps_files)
            watches.append(main)
            if beside is not None:
                watches.append(self._start(beside.argv, beside.files, beside.limits, shared[1]))
            _follow(watches)
        finally:
            for ends in shared:
                _close_all(ends)
            for watch in watches:
                watch.end()
        other = watches[1].ran(beside.argv) if beside is not None else None
        return replace(main.ran(argv), beside=other)

    def _start(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: StageLimits,
        shared: dict[str, int],
        *,
        stdin: bytes = b"",
        keeps_files: bool = False,
    ) -> _CommandWatch:
        """Have the zygote start a command; it takes the descriptors in `shared`."""
        asked = {
            "argv": list(argv),
            "files": dict(files),
            "limits": asdict(limits),
            "keeps_files": keeps_files,
        }
        group = self._groups.make(limits) if self._groups else None
        pipes = _Pipes(group, shared)
        try:
            pipes.send(self._line)
        except OSError as error:
            pipes.close()
            if group:
                group.remove()
            raise unavailable(
                f"{argv[0]} was not run: the sandbox's zygote died: {error}"
            ) from error
        feeds = {"asked": marshal.dumps(asked), "stdin": stdin}
        return _CommandWatch(
            pipes,
            zygote=self._zygote.pid,
            feeds={name: data for name, data in feeds.items() if name in pipes.ours},
            limits=limits,
            begun_us=time.monotonic_ns() // 1000,
            group=group,
        )

    def close(self) -> None:
        """End the zygote, and with it what still runs."""
        self._line.close()
        self._zygote.kill()
        self._zygote.wait()


class _Pipes:
    """Pipes between worker and keeper: `ours` and `theirs` by name."""

    def __init__(self, group: CommandGroup | None, shared: dict[str, int]) -> None:
        """Take those in `shared` for theirs: another command has the other ends."""
        self.ours: dict[str, int] = {}
        joins = group.open() if group else os.open(os.devnull, os.O_WRONLY)
        self._theirs: dict[str, int] = {"joins": joins, **shared}
        shared.clear()
        for name in zygote.PIPES:
            if name in self._theirs:
                continue
            ends = os.pipe()
            is_fed = name in {"stdin", "asked"}
            self._theirs[name], self.ours[name] = ends if is_fed else reversed(ends)

    def send(self, line: socket.socket) -> None:
        """Give the zygote its ends."""
        socket.send_fds(line, [b"."], [self._theirs[name] for name in zygote.ENDS])
        _close_all(self._theirs)

    def close(self) -> None:
        """Close what is open here."""
        _close_all(self.ours)
        _close_all(self._theirs)


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


@dataclass(slots=True)
class _CommandWatch:
    """The worker's side of one command: feeds it, reads it, and ends it at a limit."""

    pipes: _Pipes
    zygote: int
    feeds: dict[str, bytes]
    limits: StageLimits
    begun_us: int
    hit: str = ""
    processes: tuple[int, ...] = ()
    """The command and its keeper, once they are known."""
    processors: Sequence[int] = ()
    """Those that its processes share, once they are more."""
    group: CommandGroup | None = None
    failure: str = ""
    output: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in ("stdout", "stderr", "said", "kept")}
    )

    @property
    def is_over(self) -> bool:
        """Whether the command has ended and the keeper has said how."""
        return "kept" not in self.pipes.ours

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a selector look at its descriptors."""
        for name in self.output.keys() & self.pipes.ours.keys():
            selector.register(self.pipes.ours[name], selectors.EVENT_READ, (self, name))
        for name in self.feeds:
            os.set_blocking(self.pipes.ours[name], False)
            selector.register(self.pipes.ours[name], selectors.EVENT_WRITE, (self, name))

    def move(self, name: str, selector: selectors.BaseSelector) -> None:
        """Read or write what one of its descriptors is ready for."""
        descriptor = self.pipes.ours[name]
        if name in self.feeds:
            is_over = self._feed(name, descriptor)
        else:
            data = os.read(descriptor, _CHUNK_BYTES)
            is_over = not data
            self._take(name, data)
        if is_over:
            selector.unregister(descriptor)
            os.close(self.pipes.ours.pop(name))

    def _feed(self, name: str, descriptor: int) -> bool:
        try:
            written = os.write(descriptor, self.feeds[name][:_CHUNK_BYTES])
        except BrokenPipeError:
            return True
        self.feeds[name] = self.feeds[name][written:]
        return not self.feeds[name]

    def _take(self, name: str, data: bytes) -> None:
        self.output[name] += data
        if name == "said":
            self._hear()
        elif name != "kept" and not self.hit:
            room = self.limits.output_bytes - len(self.output["stdout"])
            if room < len(self.output["stderr"]):
                self.kill("output")
        if self.hit and name in {"stdout", "stderr"}:
            del self.output[name][self.limits.output_bytes :]

    def _hear(self) -> None:
        while b"\n" in self.output["said"]:
            line, _, rest = self.output["said"].partition(b"\n")
            self.output["said"] = rest
            word, *numbers = line.decode(errors="replace").split(" ")
            if word == "pids":
                self.processes = tuple(map(int, numbers))
            else:
                self.failure = line.decode(errors="replace").removeprefix("!")

    def look(self) -> None:
        """End the command if it is beyond a limit."""
        if self.hit or self.is_over:
            return
        if time.monotonic_ns() // 1000 - self.begun_us > self.limits.wall_us:
            self.kill("wall")
        elif self.processes and self.group is None:
            tasks, memory_bytes = _tree(self.processes[0])
            if memory_bytes > self.limits.memory_bytes:
                self.kill("memory")
            elif len(tasks) > self.limits.cpus:
                self._confine(tasks)

    def _confine(self, tasks: Sequence[int]) -> None:
        """Have a command's processes and threads share as many processors as it asked for.

        Else those of one command would get as much of the machine as those of many others.
        """
        with suppress(OSError):  # it has ended
            if not self.processors:
                self.processors = _processors_of(self.processes[0], self.limits.cpus)
        for task in tasks if self.processors else ():
            with suppress(OSError):
                os.sched_setaffinity(task, self.processors)

    def kill(self, hit: str) -> None:
        """End the command, because of a limit."""
        self.hit = hit
        with suppress(ProcessLookupError):
            os.kill(self.processes[0] if self.processes else self.zygote, signal.SIGKILL)
        if self.group:
            self.group.kill()

    def end(self) -> None:
        """Leave nothing: the command dies with its keeper, the keeper with the zygote."""
        if self.group:
            if self.group.ran_out_of_memory():
                self.hit = self.hit or "memory"
            self.group.remove()
        if "kept" in self.pipes.ours:
            for process in self.processes or (self.zygote,):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.pipes.close()

    def ran(self, argv: Sequence[str]) -> Ran:
        """Return how the command ended.

        Raises:
            PlexError: `unavailable` when it was not started.
        """
        if self.failure or not (self.output["kept"] or self.hit):
            raise unavailable(
                f"{argv[0]} could not be run in a sandbox: {self.failure or 'its keeper died'}"
            )
        said = bytes(self.output["kept"])
        exit_code, files = marshal.loads(said) if said else (-signal.SIGKILL, {})
        return Ran(
            exit_code=exit_code,
            stdout=self.output["stdout"].decode(errors="replace"),
            stderr=self.output["stderr"].decode(errors="replace"),
            hit=self.hit,
            files=files,
            run_us=time.monotonic_ns() // 1000 - self.begun_us,
        )


def _follow(watches: Sequence[_CommandWatch]) -> None:
    """Return when all commands have ended; the first takes those beside it with it."""
    with selectors.DefaultSelector() as selector:
        for watch in watches:
            watch.register(selector)
        while not all(watch.is_over for watch in watches):
            for key, _ in selector.select(LOOK_US / 1e6):
                watch, name = key.data
                watch.move(name, selector)
            for watch in watches:
                watch.look()
            if watches[0].is_over:
                for watch in watches[1:]:
                    if not watch.is_over and not watch.hit:
                        watch.kill(ENDED)


def _tree(process: int) -> tuple[list[int], int]:
    """Return the threads of a process and those below it, and their resident memory.

    Pages that are shared do not count.
    """
    found: list[int] = []
    nbytes, todo = 0, [process]
    while todo:
        current = todo.pop()
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{current}/statm").read_text().split()
            nbytes += (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
            for task in os.listdir(f"/proc/{current}/task"):
                found.append(int(task))
                children = Path(f"/proc/{current}/task/{task}/children").read_text()
                todo += [int(child) for child in children.split()]
    return found, nbytes


def _processors_of(process: int, number: int) -> Sequence[int]:
    """Return so many of a process's processors, beginning with the one that it ran on last."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    last = int(fields[_LAST_PROCESSOR])
    return sorted(os.sched_getaffinity(process), key=lambda one: (one < last, one))[:number]

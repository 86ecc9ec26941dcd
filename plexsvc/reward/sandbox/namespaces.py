"""Sandbox of namespaces: own users, mounts, processes, network, IPC and host name for each command.

Theory of operation. The worker forks a keeper, which enters new namespaces and forks the command as
process 1 of its own process namespace; so when the command ends, or is killed, everything that it
started is gone. The command sees a new root: the system read-only, a `/tmp` of bounded size, its
own `/proc`. It runs as a user that exists nowhere else, without capabilities, under a filter of
system calls and limits of resources. The keeper dies with the worker, the command with the keeper.
The keeper stays in the mount namespace and hands over the files that the command left.

As root, mounts are made before the user namespace is entered, so the command has no right over them
at all. Another user needs unprivileged user namespaces for the same.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import stat
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.sandbox import kernel
from plexsvc.reward.sandbox.base import Limits, Ran
from plexsvc.tether import die_with_parent

INNER_ID: Final = 1000
"""User and group of the command, inside."""

OUTER_ID: Final = 65_534
"""User and group as which the machine sees it when the worker is root: nobody."""

BOX: Final = "/tmp/box"
"""Where a command starts, with its files."""

MAX_FILES: Final = 4096
LOOK_US: Final = 50_000
"""How often the memory of a command's processes is looked at."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS: Final = ("/etc/ld.so.cache", "/etc/alternatives")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_OLD: Final = "/.old"
_STDERR: Final = 2
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CHUNK_BYTES: Final = 1 << 16


class Kept(msgspec.Struct, frozen=True):
    """What the keeper says when the command has ended."""

    status: int
    files: dict[str, bytes]


class NamespaceSandbox:
    """Runs commands in namespaces of their own. Use it from a process with one thread."""

    def __init__(self) -> None:
        self._filter = kernel.compile_filter()
        self._is_root = os.geteuid() == 0
        self._readonly = _readable_directories()

    def describe(self) -> str:
        """Return what isolates."""
        how = "root" if self._is_root else "unprivileged user namespaces"
        return f"namespaces (user, mount, pid, net, ipc, uts, cgroup; as {how}), seccomp, rlimits"

    def is_available(self) -> bool:
        """Return True: making one fails where nothing isolates."""
        return True

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes],
        stdin: bytes = b"",
        limits: Limits,
        keeps_files: bool = False,
    ) -> Ran:
        """Return how a command ended; nothing of it is left.

        Raises:
            PlexError: `unavailable` when the sandbox could not be set up.
        """
        begun_us = time.monotonic_ns() // 1000
        pipes = _Pipes()
        keeper = os.fork()
        if keeper == 0:
            _Keeper(self, pipes, limits=limits, files=files, keeps_files=keeps_files).run(argv)
        pipes.close_theirs()
        watch = _Watch(pipes, keeper, stdin=stdin, limits=limits, begun_us=begun_us)
        try:
            watch.run(maps_as_root=self._is_root)
        finally:
            watch.end()
        return watch.ran(argv)

    @property
    def is_root(self) -> bool:
        """Whether the worker is root."""
        return self._is_root

    @property
    def filter(self) -> bytes:
        """The filter of system calls."""
        return self._filter

    @property
    def readonly(self) -> Sequence[str]:
        """Directories and files of the system that commands may read."""
        return self._readonly


class _Pipes:
    """Pipes between worker and keeper: `ours` and `theirs` by name; all close on exec."""

    def __init__(self) -> None:
        self.ours: dict[str, int] = {}
        self.theirs: dict[str, int] = {}
        for name in ("stdin", "go"):
            self.theirs[name], self.ours[name] = os.pipe()
        for name in ("stdout", "stderr", "said", "kept"):
            self.ours[name], self.theirs[name] = os.pipe()

    def close_theirs(self) -> None:
        """Leave the other side's ends to it."""
        _close_all(self.theirs)

    def close_ours(self) -> None:
        """Leave the other side's ends to it."""
        _close_all(self.ours)


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


class _Keeper:
    """The process between worker and command. It never returns."""

    def __init__(
        self,
        sandbox: NamespaceSandbox,
        pipes: _Pipes,
        *,
        limits: Limits,
        files: Mapping[str, bytes],
        keeps_files: bool,
    ) -> None:
        self._sandbox = sandbox
        self._pipes = pipes
        self._limits = limits
        self._files = files
        self._keeps_files = keeps_files

    def run(self, argv: Sequence[str]) -> NoReturn:
        """Run the command and say how it ended."""
        code = 1
        try:
            die_with_parent(os.getppid())
            os.setsid()
            Path("/proc/self/oom_score_adj").write_text("1000")
            self._pipes.close_ours()
            self._keep(argv)
            code = 0
        except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
            _say(self._pipes.theirs["said"], f"!{error}")
        finally:
            os._exit(code)

    def _keep(self, argv: Sequence[str]) -> None:
        theirs = self._pipes.theirs
        if not self._sandbox.is_root:
            self._enter_user_namespace()
        apart = kernel.NEW_NS | kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC
        kernel.unshare(apart | kernel.NEW_UTS | kernel.NEW_CGROUP)
        command = os.fork()
        if command == 0:
            self._become(argv)
        _say(theirs["said"], f"pid {command}")
        for name in ("stdin", "stdout", "stderr"):
            os.close(theirs.pop(name))
        _, status = os.waitpid(command, 0)
        files = dict(_left_files(BOX, self._limits)) if self._keeps_files else {}
        kept = msgspec.msgpack.encode(Kept(os.waitstatus_to_exitcode(status), files))
        with os.fdopen(theirs.pop("kept"), "wb") as file:
            file.write(kept)

    def _become(self, argv: Sequence[str]) -> NoReturn:
        """Set up the inside and become the command."""
        said = self._pipes.theirs["said"]
        try:
            owner = OUTER_ID if self._sandbox.is_root else os.getuid()
            _make_root(self._sandbox.readonly, limits=self._limits, owner=owner)
            _write_files(self._files, owner=owner)
            if self._sandbox.is_root:
                self._enter_user_namespace()
            self._lock(argv)
        except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
            _say(said, f"!{error}")
        finally:
            os._exit(127)

    def _enter_user_namespace(self) -> None:
        """Become the user that exists nowhere else; the worker writes who that is outside."""
        kernel.unshare(kernel.NEW_USER)
        _say(self._pipes.theirs["said"], f"map {os.getpid()}")
        self._wait()
        os.setgroups([]) if self._sandbox.is_root else None
        os.setresgid(INNER_ID, INNER_ID, INNER_ID)
        os.setresuid(INNER_ID, INNER_ID, INNER_ID)

    def _wait(self) -> None:
        if not os.read(self._pipes.theirs["go"], 1):
            os._exit(1)  # the worker is gone

    def _lock(self, argv: Sequence[str]) -> NoReturn:
        theirs = self._pipes.theirs
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(theirs[name], number)
        die_with_parent(0)  # the keeper is outside of this namespace of processes
        _say(theirs["said"], "ready")
        self._wait()  # so that the worker was there after the tie was made
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - what the worker had open
            if int(name) > _STDERR:
                with suppress(OSError):  # the listing's own
                    os.set_inheritable(int(name), False)
        os.chdir(BOX)
        os.umask(0o077)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        kernel.drop_capabilities()
        kernel.set_limits(self._limits)
        kernel.load_filter(self._sandbox.filter)
        os.execve(argv[0], list(argv), _ENVIRONMENT)


@dataclass(slots=True)
class _Watch:
    """The worker's side of one command: feeds it, reads it, and ends it at a limit."""

    pipes: _Pipes
    keeper: int
    stdin: bytes
    limits: Limits
    begun_us: int
    hit: str = ""
    command: int = 0
    failure: str = ""
    output: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in ("stdout", "stderr", "said", "kept")}
    )

    def run(self, *, maps_as_root: bool) -> None:
        """Return when the command has ended and the keeper has said how."""
        with selectors.DefaultSelector() as selector:
            for name in ("stdout", "stderr", "said", "kept"):
                selector.register(self.pipes.ours[name], selectors.EVENT_READ, name)
            self._register_stdin(selector)
            while "kept" in self.pipes.ours and not self.failure:
                for key, _ in selector.select(LOOK_US / 1e6):
                    self._move(key.data, selector, maps_as_root=maps_as_root)
                self._look()

    def _register_stdin(self, selector: selectors.BaseSelector) -> None:
        descriptor = self.pipes.ours["stdin"]
        if not self.stdin:
            os.close(self.pipes.ours.pop("stdin"))
            return
        os.set_blocking(descriptor, False)
        selector.register(descriptor, selectors.EVENT_WRITE, "stdin")

    def _move(self, name: str, selector: selectors.BaseSelector, *, maps_as_root: bool) -> None:
        if name not in self.pipes.ours:
            return
        descriptor = self.pipes.ours[name]
        if name == "stdin":
            is_over = self._feed(descriptor)
        else:
            data = os.read(descriptor, _CHUNK_BYTES)
            is_over = not data
            self._take(name, data, maps_as_root=maps_as_root)
        if is_over:
            selector.unregister(descriptor)
            os.close(self.pipes.ours.pop(name))

    def _feed(self, descriptor: int) -> bool:
        try:
            written = os.write(descriptor, self.stdin[:_CHUNK_BYTES])
        except BrokenPipeError:
            return True
        self.stdin = self.stdin[written:]
        return not self.stdin

    def _take(self, name: str, data: bytes, *, maps_as_root: bool) -> None:
        self.output[name] += data
        if name == "said":
            self._hear(maps_as_root=maps_as_root)
        elif name != "kept" and not self.hit:
            room = self.limits.output_bytes - len(self.output["stdout"])
            if room < len(self.output["stderr"]):
                self._kill("output")
        if self.hit and name in {"stdout", "stderr"}:
            del self.output[name][self.limits.output_bytes :]

    def _hear(self, *, maps_as_root: bool) -> None:
        while b"\n" in self.output["said"]:
            line, _, rest = self.output["said"].partition(b"\n")
            self.output["said"] = rest
            word, _, value = line.decode(errors="replace").partition(" ")
            if word == "pid":
                self.command = int(value)
            elif word == "map":
                process = self.command if maps_as_root else self.keeper
                _write_maps(process, as_root=maps_as_root)
                os.write(self.pipes.ours["go"], b"m")
            elif word == "ready":
                os.write(self.pipes.ours["go"], b"g")
            else:
                self.failure = line.decode(errors="replace").removeprefix("!")

    def _look(self) -> None:
        if self.hit:
            return
        if time.monotonic_ns() // 1000 - self.begun_us > self.limits.wall_us:
            self._kill("wall")
        elif self.command and _memory_bytes(self.command) > self.limits.memory_bytes:
            self._kill("memory")

    def _kill(self, hit: str) -> None:
        self.hit = hit
        with suppress(ProcessLookupError):
            os.kill(self.command or self.keeper, signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing: the command dies with its keeper."""
        if self.failure or "kept" in self.pipes.ours:
            for process in filter(None, (self.command, self.keeper)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.pipes.close_ours()
        os.waitpid(self.keeper, 0)

    def ran(self, argv: Sequence[str]) -> Ran:
        """Return how the command ended.

        Raises:
            PlexError: `unavailable` when it was not started.
        """
        if self.failure or not (self.output["kept"] or self.hit):
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"{argv[0]} could not be run in a sandbox: {self.failure or 'its keeper died'}",
            )
        said = bytes(self.output["kept"])
        kept = msgspec.msgpack.decode(said, type=Kept) if said else Kept(-signal.SIGKILL, {})
        return Ran(
            exit_code=kept.status,
            stdout=self.output["stdout"].decode(errors="replace"),
            stderr=self.output["stderr"].decode(errors="replace"),
            hit=self.hit,
            files=kept.files,
            run_us=time.monotonic_ns() // 1000 - self.begun_us,
        )


def _say(descriptor: int, line: str) -> None:
    os.write(descriptor, line.replace("\n", " ").encode()[:1024] + b"\n")


def _write_maps(process: int, *, as_root: bool) -> None:
    outer = (OUTER_ID, OUTER_ID) if as_root else (os.geteuid(), os.getegid())
    place = Path(f"/proc/{process}")
    if not as_root:
        (place / "setgroups").write_text("deny")
    (place / "uid_map").write_text(f"{INNER_ID} {outer[0]} 1")
    (place / "gid_map").write_text(f"{INNER_ID} {outer[1]} 1")


def _readable_directories() -> tuple[str, ...]:
    """Return what commands may read: the system and this Python with its packages."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")}
    python |= {str(Path(sys.executable).resolve().parent.parent)}
    places = [*_SYSTEM, *_SETTINGS, *sorted(python)]
    found: list[str] = []
    for place in places:
        inside = any(place == one or place.startswith(f"{one}/") for one in found)
        if os.path.lexists(place) and not inside:
            found.append(place)
    return tuple(found)


_ENVIRONMENT: Final = {
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "HOME": BOX,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
}


def _make_root(readonly: Sequence[str], *, limits: Limits, owner: int) -> None:
    """Make the inside the root of this mount namespace."""
    socket.sethostname("sandbox")
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", "/tmp", "tmpfs", safe, "size=1m,nr_inodes=1k,mode=755")
    Path(f"/tmp{_OLD}").mkdir()
    kernel.pivot_root("/tmp", f"/tmp{_OLD}")
    os.chdir("/")
    for place in readonly:
        _bind(place)
    _make_devices()
    Path("/proc").mkdir()
    kernel.mount("proc", "/proc", "proc", safe | kernel.MS_NOEXEC)
    Path("/etc").mkdir(exist_ok=True)
    Path("/etc/passwd").write_text(f"user:x:{INNER_ID}:{INNER_ID}::{BOX}:/bin/sh\n")
    Path("/etc/group").write_text(f"user:x:{INNER_ID}:\n")
    Path("/tmp").mkdir()
    size = f"size={limits.disk_bytes},nr_inodes={MAX_FILES},mode=700,uid={owner},gid={owner}"
    kernel.mount("tmpfs", "/tmp", "tmpfs", safe, size)
    kernel.unmount(_OLD)
    Path(_OLD).rmdir()
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/", "", flags | safe)


def _bind(place: str) -> None:
    """Show a directory or file of the system, or a link to one, read-only."""
    old, new = Path(_OLD + place), Path(place)
    new.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if old.is_symlink():
        new.symlink_to(old.readlink())
        return
    if old.is_dir():
        new.mkdir(mode=0o755, exist_ok=True)
    else:
        new.touch()
    kernel.mount(str(old), place, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.make_readonly(place)


def _make_devices() -> None:
    Path("/dev").mkdir()
    for name in _DEVICES:
        target = Path("/dev", name)
        target.touch()
        kernel.mount(f"{_OLD}/dev/{name}", str(target), "", kernel.MS_BIND)
    for name, target_name in (
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        Path("/dev", name).symlink_to(f"/proc/self/{target_name}")


def _write_files(files: Mapping[str, bytes], *, owner: int) -> None:
    box = Path(BOX)
    box.mkdir(mode=0o700)
    os.chown(box, owner, owner)
    for name, data in files.items():
        path = box / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"a file's name leaves its directory: {name!r}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o700)
        for one in (path, *path.relative_to(box).parents[:-1]):
            os.chown(box / one, owner, owner)


def _left_files(top: str, limits: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files below a directory, following no link, within the disk limit."""
    room = limits.disk_bytes
    for directory, _, names, handle in os.fwalk(top, follow_symlinks=False):
        for name in names:
            with suppress(OSError):
                descriptor = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle
                )
                with os.fdopen(descriptor, "rb") as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode) or found.st_size > room:
                        continue
                    data = file.read(room)
                room -= len(data)
                yield os.path.relpath(os.path.join(directory, name), top), data  # noqa: PTH118


def _memory_bytes(process: int) -> int:
    """Return the resident memory of a process and those below it, without shared pages."""
    total, todo = 0, [process]
    while todo:
        current = todo.pop()
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{current}/statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
            for task in os.listdir(f"/proc/{current}/task"):  # noqa: PTH208
                children = Path(f"/proc/{current}/task/{task}/children").read_text()
                todo += [int(child) for child in children.split()]
    return total

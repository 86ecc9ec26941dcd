"""Zygote of a sandbox: a clean Python in prepared namespaces, from which each command is forked.

`python -I -S zygote.py LINE PARENT` imports nothing of ours but what names system calls, and holds
nothing of any sample: it takes descriptors only. What runs is read by the keeper, a fork that lives
as long as one command.

Theory of operation. The zygote enters namespaces (users where it is not root; mounts, network, IPC,
host name, cgroups) and makes a new root: the system read-only, places for `/tmp` and `/proc`. For
each command it forks a keeper, which enters a copy of the mounts and a new namespace of processes
and forks the command as its process 1; so when the command ends, or is killed, everything that it
started is gone. The command mounts its own `/proc` and an empty `/tmp` of bounded size, becomes a
user that exists nowhere else, gives up all capabilities, and bounds itself by limits of resources
and a filter of system calls. A command that is this Python (`PYTHON`) then runs in the interpreter
that it was forked with; any other is executed. The keeper stays and hands over the files that the
command left. Command, keeper and zygote each die with the process before them.

Network, IPC and user namespace are the same for all commands of a zygote. They hold nothing: there
is no interface, and the filter refuses sockets, keys and IPC.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import marshal
import os
import select
import signal
import socket
import stat
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

if __name__ == "__main__":  # without site packages: from the checkout, or where it is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from plexsvc.reward.sandbox import kernel
from plexsvc.reward.sandbox.base import PYC_HEADER_BYTES, PYTHON, StageLimits
from plexsvc.tether import die_with_parent, set_process_name

INNER_ID: Final = 1000
"""User and group of the command, inside."""

OUTER_ID: Final = 65_534
"""User and group as which the machine sees it when the worker is root: nobody."""

BOX: Final = "/tmp/box"
"""Where a command starts, with its files."""

MAX_FILES: Final = 4096
SHARED_BYTES: Final = 1 << 20
"""Of `/dev/shm`, where Python's `multiprocessing` keeps its locks."""
PIPES: Final = ("stdin", "stdout", "stderr", "said", "kept", "asked")
ENDS: Final = (*PIPES, "joins")
"""Descriptors that come with each command. Who writes to the last is in the command's group."""

ENVIRONMENT: Final = {
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "HOME": BOX,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
}
GPUS: Final = "CUDA_VISIBLE_DEVICES"
"""The GPUs that the worker holds of the node's, by their numbers: commands see them alone."""
if _gpus := os.environ.get(GPUS):
    ENVIRONMENT[GPUS] = _gpus
READY: Final = b"ready"
_WARM: Final = (
    "ast", "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "threading", "traceback", "typing", "uuid",
)  # fmt: skip
"""What programs import most; forked with the interpreter."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS: Final = ("/etc/ld.so.cache", "/etc/alternatives")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_OLD: Final = "/.old"
_OLD_PROC: Final = "/.proc"
"""The zygote's `/proc`. Without root the kernel mounts a new one only beside one that is whole."""

_STDERR: Final = 2
_MAX_DESCRIPTORS: Final = 1 << 16


class Inside(NamedTuple):
    """What the zygote prepared."""

    filter: bytes
    users: int
    """The user namespace of commands; -1: the zygote's own."""
    below_tmp: tuple[str, ...] = ()
    """What commands may read that lies below the `/tmp` of the machine."""

    @property
    def owner(self) -> int:
        """Return the owner of the command's files, as the zygote sees users."""
        return OUTER_ID if self.users >= 0 else INNER_ID


def main() -> None:
    """Serve a worker until it closes the line."""
    line_fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    set_process_name("sandbox-zygote")
    for name in _WARM:
        __import__(name)
    line = socket.socket(fileno=line_fd)
    try:
        inside = _prepare(line.recv(1 << 16))
    except BaseException as error:  # noqa: BLE001 - the worker tells
        line.sendall(f"{error}".encode())
        return
    line.sendall(READY)
    __import__("unittest.mock")  # and asyncio with it: graders need both, the worker does not wait
    argv = _serve(line, inside)
    if argv:
        _interpret(argv)


def _prepare(instructions: bytes) -> Inside:
    """Enter the namespaces and make the new root."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    apart = kernel.NEW_NS | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_CGROUP
    if os.geteuid() == 0:
        users = _user_namespace()
        kernel.unshare(apart)
    else:
        users = -1
        ids = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEW_USER)
        _write_maps(os.getpid(), ids=ids, may_set_groups=False)
        kernel.unshare(apart)
    socket.sethostname("sandbox")
    readable = _readable_directories()
    _make_root(readable)
    below_tmp = tuple(place for place in readable if place.startswith("/tmp/"))
    return Inside(instructions, users, below_tmp)


def _user_namespace() -> int:
    """Return a user namespace in which the outer user is the inner one, and there is no other."""
    ours, theirs = os.pipe()
    zygote, holder = os.getpid(), os.fork()
    if holder == 0:
        with contextlib.suppress(BaseException):
            kernel.unshare(kernel.NEW_USER)
            die_with_parent(zygote)  # other credentials end an older tie
            os.write(theirs, b".")
            signal.pause()
        os._exit(1)
    os.close(theirs)
    try:
        if not os.read(ours, 1):
            raise OSError("a user namespace could not be made")
        _write_maps(holder, ids=(OUTER_ID, OUTER_ID), may_set_groups=True)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY)
    finally:
        os.close(ours)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def _write_maps(process: int, *, ids: tuple[int, int], may_set_groups: bool) -> None:
    place = Path(f"/proc/{process}")
    if not may_set_groups:
        (place / "setgroups").write_text("deny")
    (place / "uid_map").write_text(f"{INNER_ID} {ids[0]} 1")
    (place / "gid_map").write_text(f"{INNER_ID} {ids[1]} 1")


def _readable_directories() -> tuple[str, ...]:
    """Return what commands may read: the system and this Python with its packages."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")}
    python |= {str(Path(sys.executable).parent.parent)}
    python |= {str(Path(sys.executable).resolve().parent.parent)}
    found: list[str] = []
    for place in [*_SYSTEM, *_SETTINGS, *sorted(python)]:
        inside = any(place == one or place.startswith(f"{one}/") for one in found)
        if os.path.lexists(place) and not inside:
            found.append(place)
    return tuple(found)


def _make_root(readonly: Sequence[str]) -> None:
    """Make the inside the root of this mount namespace."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", "/tmp", "tmpfs", safe, "size=1m,nr_inodes=1k,mode=755")
    Path(f"/tmp{_OLD}").mkdir()
    kernel.pivot_root("/tmp", f"/tmp{_OLD}")
    os.chdir("/")
    for place in readonly:
        _bind(place)
    _make_devices()
    for name in ("/proc", "/tmp", _OLD_PROC):
        Path(name).mkdir(exist_ok=True)
    kernel.mount(f"{_OLD}/proc", _OLD_PROC, "", kernel.MS_BIND | kernel.MS_REC)
    Path("/etc").mkdir(exist_ok=True)
    Path("/etc/passwd").write_text(f"user:x:{INNER_ID}:{INNER_ID}::{BOX}:/bin/sh\n")
    Path("/etc/group").write_text(f"user:x:{INNER_ID}:\n")
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
    Path("/dev/shm").mkdir()
    for name in (*_DEVICES, *_gpu_devices()):
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


def _gpu_devices() -> list[str]:
    """Return the names of the device files of the GPUs that this Python's worker holds."""
    asked = [int(name) for name in ENVIRONMENT.get(GPUS, "").split(",") if name.isdigit()]
    there = os.listdir(f"{_OLD}/dev")
    files = [name.removeprefix("nvidia") for name in there if name.startswith("nvidia")]
    numbers = sorted(int(number) for number in files if number.isdigit())
    held = [f"nvidia{numbers[gpu]}" for gpu in asked if gpu < len(numbers)]
    return [*held, *(name for name in ("nvidiactl", "nvidia-uvm") if held and name in there)]


def _serve(line: socket.socket, inside: Inside) -> list[str]:
    """Fork a keeper for each command; returns in a command, with what this Python is to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers end by themselves
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, 1, len(ENDS))
        if not data:
            return []
        zygote = os.getpid()
        if os.fork() == 0:
            line.detach()
            return _keep(dict(zip(ENDS, descriptors, strict=True)), inside, zygote=zygote)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(ends: dict[str, int], inside: Inside, *, zygote: int) -> list[str]:
    """Keep a command until it has ended; returns in it, with what this Python is to run."""
    try:
        die_with_parent(zygote)
        set_process_name("sandbox")  # the command's too
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with os.fdopen(ends.pop("asked"), "rb") as file:
            asked: dict[str, Any] = marshal.load(file)
        limits = StageLimits(**asked["limits"])
        kernel.unshare(kernel.NEW_NS | kernel.NEW_PID)
        keeper_lives, keeper_holds = os.pipe()
        command = os.fork()
        if command == 0:
            os.close(keeper_holds)
            _become(asked, ends, inside, limits=limits, keeper_lives=keeper_lives)
            return list(asked["argv"][len(PYTHON) :])
        _say(ends["said"], f"pids {command} {os.getpid()}")
        for name in ("stdin", "stdout", "stderr", "joins"):
            os.close(ends.pop(name))
        _, status = os.waitpid(command, 0)
        files = dict(_left_files(BOX, limits)) if asked["keeps_files"] else {}
        with os.fdopen(ends.pop("kept"), "wb") as file:
            marshal.dump((os.waitstatus_to_exitcode(status), files), file)
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
        _fail(ends["said"], error)
    os._exit(0)


def _become(
    asked: Mapping[str, Any],
    ends: Mapping[str, int],
    inside: Inside,
    *,
    limits: StageLimits,
    keeper_lives: int,
) -> None:
    """Set up what is the command's own, and lock it in; returns only where this Python goes on."""
    argv = asked["argv"]
    try:
        os.write(ends["joins"], b"0")
        _mount_own(limits, inside)
        _write_files(asked["files"], owner=inside.owner)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(ends[name], number)
        os.chdir(BOX)
        os.umask(0o077)
        if inside.users >= 0:
            kernel.enter(inside.users, kernel.NEW_USER)
            os.setgroups([])
        os.setresgid(INNER_ID, INNER_ID, INNER_ID)
        os.setresuid(INNER_ID, INNER_ID, INNER_ID)
        kernel.drop_capabilities()
        die_with_parent(0)  # the keeper is outside of this namespace of processes
        if select.select([keeper_lives], [], [], 0)[0]:
            os._exit(1)  # it died before the tie was made
        kernel.set_limits(limits)
        if _is_script(argv):
            kernel.let_itself_be_read()  # as after an exec
            kernel.load_filter(inside.filter)
            os.closerange(_STDERR + 1, _MAX_DESCRIPTORS)
            return
        for name in os.listdir("/proc/self/fd"):
            if int(name) > _STDERR:
                with contextlib.suppress(OSError):  # the listing's own
                    os.set_inheritable(int(name), False)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        kernel.load_filter(inside.filter)
        os.execve(argv[0], argv, ENVIRONMENT)
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
        _fail(ends["said"], error)
    os._exit(127)


def _is_script(argv: Sequence[str]) -> bool:
    """Return whether a command is a script for this Python."""
    rest = argv[len(PYTHON) :]
    return tuple(argv[: len(PYTHON)]) == PYTHON and bool(rest) and not rest[0].startswith("-")


def _mount_own(limits: StageLimits, inside: Inside) -> None:
    """Mount the command's `/proc` and `/tmp` and take the zygote's `/proc` away."""
    owner, kept = inside.owner, [os.open(place, os.O_PATH) for place in inside.below_tmp]
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", "/proc", "proc", safe | kernel.MS_NOEXEC)
    kernel.unmount(_OLD_PROC)
    size = f"size={limits.disk_bytes},nr_inodes={MAX_FILES},mode=700,uid={owner},gid={owner}"
    kernel.mount("tmpfs", "/tmp", "tmpfs", safe, size)
    shared = f"size={SHARED_BYTES},nr_inodes=256,mode=700,uid={owner},gid={owner}"
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", safe | kernel.MS_NOEXEC, shared)
    for place, descriptor in zip(inside.below_tmp, kept, strict=True):
        Path(place).mkdir(mode=0o755, parents=True)
        kernel.mount(f"/proc/self/fd/{descriptor}", place, "", kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)


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


def _left_files(top: str, limits: StageLimits) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files below a directory, following no link, within the disk limit."""
    room = limits.disk_bytes
    for directory, _, names, handle in os.fwalk(top, follow_symlinks=False):
        for name in names:
            path = os.path.relpath(os.path.join(directory, name), top)  # noqa: PTH118 - of strings, thousands of times
            # A name that is no UTF-8 is left out: no message to the proxy could carry it.
            with contextlib.suppress(OSError, UnicodeEncodeError):
                path.encode()
                descriptor = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle
                )
                with os.fdopen(descriptor, "rb") as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode) or found.st_size > room:
                        continue
                    data = file.read(room)
                room -= len(data)
                yield path, data


def _fail(descriptor: int, error: BaseException) -> None:
    with contextlib.suppress(OSError):  # the worker is gone
        _say(descriptor, f"!{error}")


def _say(descriptor: int, line: str) -> None:
    os.write(descriptor, line.replace("\n", " ").encode()[:1024] + b"\n")


def _interpret(argv: list[str]) -> NoReturn:
    """Run a script as `python -I -S` would, with nothing of the zygote's at hand."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "plexsvc"]:
        del sys.modules[name]
    del sys.path[0]
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.argv[:] = argv
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as where packages are
    sys.set_int_max_str_digits(0)  # a right program may print more digits than Python allows
    script = sys.modules["__main__"] = types.ModuleType("__main__")
    script.__file__ = argv[0]
    code = 1
    try:
        exec(_code(Path(argv[0])), script.__dict__)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error.with_traceback(_inner(error)), _inner(error))
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for its threads, as the interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001 - a fork ends without them
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)  # without taking the interpreter apart, which would copy all its memory


def _code(script: Path) -> types.CodeType:
    data = script.read_bytes()
    if script.suffix == ".pyc":
        found: types.CodeType = marshal.loads(data[PYC_HEADER_BYTES:])  # by this very Python
        return found
    return compile(data, script, "exec")


def _inner(error: BaseException) -> types.TracebackType | None:
    """Return the traceback without this module's frame."""
    return None if error.__traceback__ is None else error.__traceback__.tb_next


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    sys.stderr.write(f"{leaving.code}\n")
    return 1


if __name__ == "__main__":
    main()

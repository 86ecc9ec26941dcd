"""Memory files backed by huge pages: a 2 MiB page is freed and mapped at the cost of a 4 KiB one.

A plain memory file follows the machine's `shmem_enabled`, which is `never` on most; a tmpfs of our
own asks for huge pages by its mount option. It is mounted nowhere: a short-lived helper process
(this file, run as a script) makes a detached mount, in a user namespace of its own where it is no
administrator, and passes its directory, for nameless files. The mount ends with the last of them
and the directory. Where the kernel or a sandbox refuses, there is no such file and the caller takes
a plain one. Where huge pages run out, the kernel fills in small ones.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from typing import Final

HELPER_TIMEOUT_S: Final = 10.0

_SYS_FSOPEN: Final = 430  # these three have one number on every architecture
_SYS_FSCONFIG: Final = 431
_SYS_FSMOUNT: Final = 432
_FSOPEN_CLOEXEC: Final = 1
_FSMOUNT_CLOEXEC: Final = 1
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6
_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUSER: Final = 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


def open_huge_file(nbytes: int) -> int:
    """Return a descriptor of an empty file of `nbytes` that takes huge pages.

    The file cannot hold more than `nbytes` of memory, rounded up to a page.

    Raises:
        OSError: refused here; the message says by what.
    """
    directory = open_directory(nbytes)
    try:
        return open_file(directory, nbytes)
    finally:
        os.close(directory)


def open_file(directory: int, nbytes: int) -> int:
    """Return a descriptor of an empty nameless file of `nbytes` in a directory.

    Raises:
        OSError: the kernel refused.
    """
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    os.ftruncate(fd, nbytes)
    return fd


def open_directory(nbytes: int = 0) -> int:
    """Return a directory whose files take huge pages, of `nbytes` in all; 0: without a limit.

    Raises:
        OSError: refused here; the message says by what.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(HELPER_TIMEOUT_S)
        argv = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(nbytes)]
        try:
            ended = subprocess.run(
                argv,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HELPER_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"no answer from the helper: {error}") from error
        if ended.returncode != 0:
            raise OSError(ended.stderr.strip().rpartition("\n")[2])
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    (fd,) = fds
    os.set_inheritable(fd, False)  # as it came over a socket, every child would get it
    return fd


def make_directory(nbytes: int) -> int:
    """Return a descriptor of a new detached tmpfs of `nbytes`; 0: without a limit.

    Raises:
        OSError: the kernel refused.
    """
    context = _call(_SYS_FSOPEN, b"tmpfs", _FSOPEN_CLOEXEC)
    for key, value in ((b"huge", b"within_size"), (b"size", str(nbytes).encode())):
        _call(_SYS_FSCONFIG, context, _FSCONFIG_SET_STRING, key, value, 0)
    _call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
    return _call(_SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)


def enter_namespace() -> None:
    """Become administrator of a new user namespace; only a process with one thread can.

    Raises:
        OSError: the kernel or a sandbox refused.
    """
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - the helper starts in 10 ms
            file.write(text)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def _help() -> None:
    """Send one directory to the parent, which reads any failure from the last line of stderr."""
    sock, nbytes = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    try:
        fd = make_directory(nbytes)
    except PermissionError:
        enter_namespace()
        fd = make_directory(nbytes)
    socket.send_fds(sock, [b"d"], [fd])


if __name__ == "__main__":
    _help()

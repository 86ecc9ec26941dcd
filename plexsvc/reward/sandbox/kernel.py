"""System calls of sandboxes that Python has no name for, and the filter of those they may make."""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import os
import resource
from typing import Any, ClassVar, Final

from plexsvc.reward.sandbox.base import StageLimits

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

NEW_NS: Final = 0x00020000
NEW_CGROUP: Final = 0x02000000
NEW_UTS: Final = 0x04000000
NEW_IPC: Final = 0x08000000
NEW_USER: Final = 0x10000000
NEW_PID: Final = 0x20000000
NEW_NET: Final = 0x40000000
NAMESPACES: Final = (NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION: Final = 0x20080522
_SECCOMP_MODE_FILTER: Final = 2
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MAX_CAPABILITY: Final = 64
_INSTRUCTION_BYTES: Final = 8
_TIOCSTI: Final = 0x5412

_DENIED: Final = {
    "other processes": "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
    "setns unshare",
    "mounts, and files by handle": "mount umount umount2 move_mount open_tree fsopen fsconfig "
    "fsmount fspick mount_setattr pivot_root chroot open_by_handle_at name_to_handle_at quotactl "
    "swapon swapoff acct fanotify_init mknod mknodat",
    "the kernel itself": "bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module "
    "finit_module delete_module reboot syslog settimeofday clock_settime clock_adjtime adjtimex "
    "iopl ioperm modify_ldt personality vhangup sethostname setdomainname lookup_dcookie "
    "io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl",
    "the network": "socket connect bind listen accept accept4",
    "memory that no limit counts": "memfd_create memfd_secret shmget shmat shmctl semget semop "
    "semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink",
    "more than one share of the processor": "setsid sched_setscheduler sched_setattr "
    "sched_setaffinity",
}
"""System calls that fail, by what they reach."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_: ClassVar[Any] = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _MountAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = tuple(
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    )


@functools.cache
def compile_filter() -> bytes:
    """Return the system call filter as BPF instructions.

    Raises:
        ImportError: without pyseccomp or the library that it binds.
    """
    try:
        seccomp: Any = importlib.import_module("pyseccomp")
    except (OSError, RuntimeError) as error:
        raise ImportError(f"libseccomp cannot be loaded: {error}") from error
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    denied = seccomp.ERRNO(errno.EPERM)
    for name in " ".join(_DENIED.values()).split():
        try:
            rules.add_rule(denied, name)
        except ValueError:
            continue  # an architecture without this call
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be filtered
    for flag in NAMESPACES:
        rules.add_rule(denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    rules.add_rule(denied, "prctl", seccomp.Arg(0, seccomp.EQ, _PR_SET_PDEATHSIG))
    rules.add_rule(denied, "ioctl", seccomp.Arg(1, seccomp.EQ, _TIOCSTI))
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:  # tempfile imports much
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def load_filter(instructions: bytes) -> None:
    """Let this process, and what it starts, make only the calls that the filter allows."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    address = ctypes.cast(buffer, ctypes.c_void_p)
    program = _Filter(len(instructions) // _INSTRUCTION_BYTES, address)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    done = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    _check(done, "prctl(PR_SET_SECCOMP)")


def drop_capabilities() -> None:
    """Let neither this process nor what it becomes have a capability."""
    for capability in range(_MAX_CAPABILITY):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel knows no more
    _check(
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)"
    )
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, 64 bits each
    _check(_libc.capset(head, none), "capset")


def let_itself_be_read() -> None:
    """Let this process open its own `/proc`, which it may not after it became another user."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def enter(namespace: int, kind: int) -> None:
    """Enter a namespace that a descriptor names."""
    _check(_libc.setns(namespace, kind), f"setns({kind:#x})")


def unshare(flags: int) -> None:
    """Enter new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a file system."""
    texts = [text.encode() or None for text in (source, target, kind)]
    done = _libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None)
    _check(done, f"mount({kind or source} at {target})")


def make_readonly(target: str) -> None:
    """Make a mount and those below it read-only, without devices and set-user-id programs."""
    attributes = _MountAttributes(attr_set=MS_RDONLY | MS_NOSUID | MS_NODEV)
    done = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        target.encode(),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(done, f"mount_setattr({target})")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root, and what was the root `old` below it."""
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    _check(_libc.syscall(number, new.encode(), old.encode()), f"pivot_root({new})")


def unmount(target: str) -> None:
    """Take a mount away from where it is seen."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def set_limits(limits: StageLimits) -> None:
    """Bound what this process, and each that it starts, may take."""
    seconds = limits.cpus * limits.wall_us // 1_000_000 + 2
    for kind, most in (
        (resource.RLIMIT_AS, resource.RLIM_INFINITY if limits.gpus else 2 * limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NPROC, limits.max_processes),
        (resource.RLIMIT_NOFILE, limits.max_open_files),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_SIGPENDING, 256),
    ):
        resource.setrlimit(kind, (most, most))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")

"""A forked process from the fork to its entrypoint, and its exit."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from plexsvc.errors import PlexError
from plexsvc.node.messages import STACKS, ForkOrder
from plexsvc.tether import (
    ORPHANED,
    die_before_parent,
    die_with_parent,
    set_process_name,
)

Entrypoint = Callable[[dict[str, Any], Callable[[str], None]], None]


def run(
    order: ForkOrder, *, agent_pid: int, log_fd: int, go_fd: int, kept_fds: frozenset[int]
) -> NoReturn:
    """Become the process that `order` describes; called in the child right after the fork.

    It goes on once the agent is its parent and was told of it: `go_fd` says so.
    """
    code = 1
    try:
        if not os.read(go_fd, 1):
            os._exit(ORPHANED)  # in the group of its zygote, which the agent buries
        os.setsid()
        die_with_parent(agent_pid)
        die_before_parent()  # the state manager keeps every job's state, a rank one job's
        set_process_name(order.name)
        null_fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_fd, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        ready_fd = os.open(order.ready_path, os.O_WRONLY | os.O_NONBLOCK)  # the agent reads already
        keep = kept_fds | {0, 1, 2, ready_fd}
        for fd in sorted(open_fds() - keep):
            os.close(fd)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(STACKS)  # to its log, whatever its threads are in
        set_environment(order.env)
        code = _call(order, ready_fd=ready_fd)
    except BaseException:  # noqa: BLE001 - `_exit` would have it end without a word
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the zygote's own exit handlers are none of ours


def set_environment(env: Mapping[str, str]) -> None:
    """Add `env` to this process's environment: there is no exec that could carry it."""
    os.environ.update(env)  # noqa: TID251 - see above


def open_fds() -> frozenset[int]:
    """Return this process's open descriptors."""
    listed = list(Path("/proc/self/fd").iterdir())
    return frozenset(int(entry.name) for entry in listed if entry.is_symlink())  # not the lister's


def _call(order: ForkOrder, *, ready_fd: int) -> int:
    """Run the entrypoint; return the exit code, with the cause of a failure in the log.

    A refusal is no bug: it is told by its message, without a traceback.
    """
    try:
        _entrypoint(order.entrypoint)(dict(order.config), _ready_caller(ready_fd))
    except SystemExit as leaving:
        return _exit_code(leaving)
    except PlexError as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 1
    except BaseException:  # noqa: BLE001 - this is the process's outermost frame
        traceback.print_exc()
        return 1
    return 0


def _entrypoint(name: str) -> Entrypoint:
    module, _, function = name.partition(":")
    return cast("Entrypoint", getattr(importlib.import_module(module), function))


def _ready_caller(ready_fd: int) -> Callable[[str], None]:
    def ready(address: str) -> None:
        """Tell the node agent where this process serves; later calls do nothing."""
        nonlocal ready_fd
        if ready_fd >= 0:
            os.write(ready_fd, address.encode() + b"\n")
            os.close(ready_fd)
            ready_fd = -1

    return ready


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)  # noqa: T201 - what the interpreter does with a message
    return 1

"""Parent-death signal: the kernel kills a process when its parent dies, for whatever cause.

And who dies first when memory runs out. As a program, `python -m plexsvc.tether PARENT_PID
[--user NAME] COMMAND ...` ties itself and then becomes COMMAND, as that user: the tie survives
`exec`. It imports only the standard library, so a zygote may use it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_MAX_NAME_BYTES: Final = 15
_OOM_STEP: Final = 300
_MAX_OOM_SCORE: Final = 1000
_libc: Final = ctypes.CDLL(None, use_errno=True)

ORPHANED: Final = 74
"""Exit code of a process whose parent was gone before the tie was made."""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when `parent_pid` dies; leave now if it already has.

    The kernel watches the parent's *thread* that started this process: start it from one that lives
    as long as the parent does.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(ORPHANED)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, in place of init."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_before_parent() -> None:
    """Have the kernel, when memory runs out, kill this process rather than the one it came from."""
    score = Path("/proc/self/oom_score_adj")
    score.write_text(str(min(int(score.read_text()) + _OOM_STEP, _MAX_OOM_SCORE)))


def set_process_name(name: str) -> None:
    """Show this process as the last 15 bytes of `name` in `ps` and `top`."""
    _libc.prctl(_PR_SET_NAME, name.encode()[-_MAX_NAME_BYTES:], 0, 0, 0)


def become(user: str) -> None:
    """Go on as another user, with its groups alone. Only root may; the tie has to be made anew."""
    found = pwd.getpwnam(user)
    os.setgroups(os.getgrouplist(user, found.pw_gid))
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)


def main() -> NoReturn:
    """Tie this process to argument 1 and become the rest."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if command[0] == "--user":
        become(command[1])
        command = command[2:]
    die_with_parent(parent)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

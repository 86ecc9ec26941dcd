"""Hostile Python programs: what code that a model wrote might try, one attempt each.

An attempt that gets what it wants prints ESCAPED. `{secret}`, `{port}`, `{abstract}`, `{pid}` and
`{directory}` are things of the host: a file, a TCP port, an abstract Unix socket, a process and a
directory that everybody may write to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LIBC = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"
_TRY = "try:\n    {}\n    print('ESCAPED')\nexcept Exception as error:\n    print(repr(error))\n"


def _tries(line: str, imports: str = "os") -> str:
    return f"import {imports}\n" + _TRY.replace("{}", line)


def _calls(expression: str) -> str:
    return f"{_LIBC}if {expression} >= 0: print('ESCAPED')\n"


HARMLESS: Final[Mapping[str, str]] = {
    "read a file of the host": _tries("open('{secret}').read()"),
    "read it through a link": _tries("os.symlink('{secret}', 'l'); open('l').read()"),
    "read it through a hard link": _tries("os.link('{secret}', 'h'); open('h').read()"),
    "read it through the root of a process": _tries("open('/proc/{pid}/root{secret}').read()"),
    "read it from its own root": _tries("open('/proc/self/root{secret}').read()"),
    "list a directory of the host": _tries("os.listdir('{directory}')"),
    "write to a directory of the host": _tries("open('{directory}/left', 'w')"),
    "see a process of the host": _tries("open('/proc/{pid}/cmdline').read()"),
    "read the environment of a process": _tries("open('/proc/{pid}/environ').read()"),
    "signal a process of the host": _tries("os.kill({pid}, 0)"),
    "take a descriptor of a process": _tries("os.listdir('/proc/{pid}/fd')"),
    "open a pidfd of a process": _tries("os.pidfd_open({pid})"),
    "connect to a port of the host": _tries(
        "socket.create_connection(('127.0.0.1', {port}), 1)", "socket"
    ),
    "connect to an abstract socket": _tries(
        "socket.socket(socket.AF_UNIX).connect(chr(0) + '{abstract}')", "socket"
    ),
    "make a TCP socket": _tries("socket.socket(socket.AF_INET)", "socket"),
    "make a UDP socket": _tries("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "socket"),
    "make an IPv6 socket": _tries("socket.socket(socket.AF_INET6)", "socket"),
    "make a Unix socket": _tries("socket.socket(socket.AF_UNIX)", "socket"),
    "make a netlink socket": _tries("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "socket"),
    "make an anonymous memory file": _tries("os.memfd_create('x')"),
    "start a session of its own": "import os\nif os.fork() == 0:\n"
    "    os.setsid(); print('ESCAPED')\nelse:\n    os.wait()\n",
    "choose its processors": _tries("os.sched_setaffinity(0, os.sched_getaffinity(0))"),
    "write to the system": _tries("open('/usr/lib/left-behind', 'w').write('x')"),
    "see whose processes run": _tries(
        "assert any(p.isdigit() and int(p) > 50 for p in os.listdir('/proc'))"
    ),
    "see the host's name": _tries("assert os.uname().nodename == '{hostname}'"),
    "see the host's interfaces": _tries(
        "assert len(open('/proc/net/dev').read().splitlines()) > 3"
    ),
    "see the host's mounts": _tries("assert 'cgroup' in open('/proc/self/mountinfo').read()"),
    "inherit a descriptor": _tries("assert len(os.listdir('/proc/self/fd')) > 4"),
    "run as root": _tries("assert 0 in os.getresuid()"),
    "use shared memory": _calls("libc.shmget(0, 4096, 0o1600)"),
    "use a message queue": _calls("libc.msgget(0, 0o1600)"),
    "use semaphores": _calls("libc.semget(0, 1, 0o1600)"),
    "trace its children": _calls("libc.ptrace(0, 0, 0, 0)"),
    "set the parent's death signal": _calls("libc.prctl(1, 0, 0, 0, 0)"),
    "change the personality": _calls("libc.personality(0x0040000)"),
    "list kernel keys": _calls("libc.syscall(250, 0, -3, 1)"),
    "set up an io_uring": _calls("libc.syscall(425, 8, (ctypes.c_char * 256)())"),
}
"""What does no harm outside: the tests show that each succeeds there."""

PRIVILEGED: Final[Mapping[str, str]] = {
    "mount a file system": _calls("libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)"),
    "bind the system over itself": _calls("libc.mount(b'/usr', b'/tmp', None, 4096, 0)"),
    "remount the system writable": _calls("libc.mount(None, b'/usr', None, 32 | 4096, 0)"),
    "remount the root writable": _calls("libc.mount(None, b'/', None, 32 | 4096, 0)"),
    "unmount /proc": _calls("libc.umount2(b'/proc', 2)"),
    "pivot to another root": _calls("libc.syscall(155, b'/tmp', b'/tmp')"),
    "change its root": _tries("os.chroot('/tmp')"),
    "enter a user namespace": _calls("libc.unshare(0x10000000)"),
    "enter a mount namespace": _calls("libc.unshare(0x00020000)"),
    "enter a network namespace": _calls("libc.unshare(0x40000000)"),
    "clone into a user namespace": _calls("libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)"),
    "clone3 into a user namespace": _calls(
        "libc.syscall(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64)"
    ),
    "join another's namespace": _calls("libc.setns(os.open('/proc/1/ns/mnt', 0), 0)"),
    "become root": _tries("os.setuid(0)"),
    "take root's group": _tries("os.setgid(0)"),
    "change its groups": _tries("os.setgroups([0])"),
    "make a set-user-id program": "import os, shutil\nshutil.copy('/bin/sh', 'sh')\n"
    "os.chmod('sh', 0o6755)\nos.system('./sh -p -c \"id -u\" > who')\n"
    "print('ESCAPED' if open('who').read().strip() == '0' else 'no')\n",
    "run sudo or su": "import os\nif os.system('su -c true root </dev/null 2>/dev/null') == 0 or "
    "os.system('sudo -n true 2>/dev/null') == 0: print('ESCAPED')\n",
    "make a device": _tries("os.mknod('d', 0o60600, os.makedev(8, 0))"),
    "read the disk": _tries("open('/dev/sda', 'rb').read(1)"),
    "read the kernel's memory": _tries("open('/proc/kcore', 'rb').read(1)"),
    "read the kernel's log": _calls("libc.klogctl(3, (ctypes.c_char * 64)(), 64)"),
    "load a module": _calls("libc.syscall(175, b'x', 1, b'')"),
    "load a BPF program": _calls("libc.syscall(321, 0, (ctypes.c_char * 128)(), 128)"),
    "watch the processor's events": _calls(
        "libc.syscall(298, (ctypes.c_char * 128)(), 0, -1, -1, 0)"
    ),
    "set the clock": _tries("time.clock_settime(time.CLOCK_REALTIME, time.time())", "time"),
    "name the host": _tries("socket.sethostname('x')", "socket"),
    "switch swapping off": _calls("libc.swapoff(b'/dev/zero')"),
    "change a setting of the kernel": _tries("open('/proc/sys/kernel/panic', 'w').write('0')"),
    "spare itself when memory runs out": _tries(
        "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"
    ),
    "raise its limits": _tries(
        "resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))", "resource"
    ),
    "raise its priority": _tries("os.nice(-5)"),
    "run in real time": _tries("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    "open a file by its handle": _calls("libc.open_by_handle_at(-100, (ctypes.c_char * 64)(), 0)"),
    "read another's memory": _calls("libc.syscall(310, 1, None, 0, None, 0, 0)"),
    "have a group": _tries("assert os.getgroups()"),
    "have a capability": _tries(
        "assert any(line.split()[1].strip('0') for line in open('/proc/self/status') "
        "if line.startswith('Cap'))"
    ),
    "clear the filter": _calls("libc.prctl(22, 0, 0, 0, 0)"),
    "reboot": _calls("libc.reboot(0x89abcdef)"),
}
"""What asks for rights; outside it might do harm."""

GREEDY: Final[Mapping[str, str]] = {
    "fork for ever": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n"
    "        pass\n",
    "start threads for ever": "import threading, time\n"
    "while True:\n    try:\n        threading.Thread(target=time.sleep, args=(9,)).start()\n"
    "    except RuntimeError:\n        pass\n",
    "fill the memory": "held = []\nwhile True:\n    held.append(bytearray(1 << 24))\n",
    "fill the memory by many processes": "import os\nfor _ in range(8): os.fork()\nheld = []\n"
    "while True:\n    try:\n        held.append(bytearray(1 << 22))\n    except MemoryError:\n"
    "        pass\n",
    "fill the disk": "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))\n",
    "fill the disk with many files": "import os\ni = 0\nwhile True:\n    i += 1\n"
    "    os.mkdir(str(i))\n",
    "write without end": "while True: print('x' * 4096)\n",
    "write errors without end": "import sys\nwhile True: sys.stderr.write('x' * 4096)\n",
    "loop": "while True: pass\n",
    "sleep": "import time\ntime.sleep(3600)\n",
    "close its output and loop": "import os\nos.close(1); os.close(2)\nwhile True: pass\n",
    "ignore signals": "import signal, time\n"
    "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except Exception: pass\n"
    "while True: time.sleep(1)\n",
    "leave a daemon": "import os, time\nif os.fork() == 0:\n    if os.fork() == 0:\n"
    "        os.close(1); os.close(2); time.sleep(3600)\n    os._exit(0)\nos.wait()\n",
    "make a deep directory": "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')\n",
    "open files for ever": "held = []\nwhile True: held.append(open('/dev/null'))\n",
    "make a sparse file": "with open('s', 'wb') as file: file.truncate(1 << 40)\n",
    "compute a huge number": "9 ** 9 ** 9\n",
    "recurse": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()\n",
}
"""What takes more than its share."""

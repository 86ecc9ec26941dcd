"""The sandbox against hostile code, run for real; what each attempt leaves is looked for."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from plexsvc.errors import PlexError
from plexsvc.reward.sandbox.base import PYTHON, Ran, Sandbox, StageLimits
from plexsvc.reward.sandbox.opening import NoSandbox
from plexsvc.reward.sandbox.zygote import ENVIRONMENT
from tests.rigs.hostile_code import GREEDY, HARMLESS, PRIVILEGED
from tests.rigs.processes import is_alive
from tests.rigs.sandbox_process import SandboxProcess, sandbox_process
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process
QUICK = StageLimits(wall_us=20_000_000)
SMALL = StageLimits(wall_us=2_000_000, memory_bytes=128 << 20, disk_bytes=8 << 20, max_processes=16)
"""A greedy attempt is ended by these."""


USERS = ["", "nobody"] if os.geteuid() == 0 else [""]


@pytest.fixture(scope="module", params=USERS, ids=lambda user: user or "as it is")
def sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxProcess]:
    with sandbox_process(request.param) as found:
        how = "as root" if os.geteuid() == 0 and not request.param else "unprivileged"
        assert how in found.describe()
        yield found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the things of this machine that attempts are after."""
    directory = tmp_path_factory.mktemp("host")
    secret = directory / "secret"
    secret.write_text("another tenant's input")
    directory.chmod(0o777)
    abstract = f"plexsvc-{secrets.token_hex(4)}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as listener,
        subprocess.Popen(["/bin/sleep", "600"]) as victim,
    ):
        listener.bind(f"\0{abstract}")
        listener.listen()
        yield {
            "secret": str(secret),
            "directory": str(directory),
            "port": str(server.getsockname()[1]),
            "abstract": abstract,
            "pid": str(victim.pid),
            "hostname": os.uname().nodename,
        }
        assert victim.poll() is None, "something killed it"
        victim.kill()
        victim.wait()


def filled(code: str, host: Mapping[str, str]) -> str:
    for name, value in host.items():
        code = code.replace("{" + name + "}", value)
    return code


def run(
    sandbox: Sandbox, code: str, *, limits: StageLimits = QUICK, keeps_files: bool = False
) -> Ran:
    return sandbox.run(
        [*PYTHON, "main.py"],
        files={"main.py": code.encode()},
        limits=limits,
        keeps_files=keeps_files,
    )


def left_processes(zygote: int) -> set[int]:
    """Return the processes that commands left: those in the zygote's namespace of networks."""
    inside, found = Path(f"/proc/{zygote}/ns/net").readlink(), set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/net").readlink() == inside:
                found.add(int(entry.name))
    return found - {zygote}


def test_there_are_enough_attempts() -> None:
    assert len({*HARMLESS, *PRIVILEGED, *GREEDY}) >= 60


@pytest.mark.parametrize("name", [*HARMLESS, *PRIVILEGED])
def test_an_escape_fails(name: str, sandbox: Sandbox, host: Mapping[str, str]) -> None:
    ran = run(sandbox, filled({**HARMLESS, **PRIVILEGED}[name], host))
    assert "ESCAPED" not in ran.stdout, ran
    assert not ran.hit, ran
    assert not (Path(host["directory"]) / "left").exists()


@pytest.mark.parametrize("name", HARMLESS)
def test_the_same_attempt_succeeds_outside(
    name: str, host: Mapping[str, str], tmp_path: Path
) -> None:
    """Or the test above would show nothing."""
    if os.geteuid() != 0:
        pytest.skip("some of them need root outside")
    command = [sys.executable, "-I", "-S", "-c", filled(HARMLESS[name], host)]
    with Path("/dev/null").open() as inherited:
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            pass_fds=(inherited.fileno(),),
        )
    (Path(host["directory"]) / "left").unlink(missing_ok=True)
    Path("/usr/lib/left-behind").unlink(missing_ok=True)
    assert "ESCAPED" in ran.stdout, ran


@pytest.mark.parametrize("name", GREEDY)
def test_greed_is_ended_and_leaves_nothing(name: str, sandbox: SandboxProcess) -> None:
    ran = run(sandbox, GREEDY[name], limits=SMALL)
    if name == "leave a daemon":
        assert ran.exit_code == 0
    else:
        assert ran.hit or ran.exit_code != 0, ran
    assert ran.run_us < 10_000_000
    assert len(ran.stdout) + len(ran.stderr) <= 4 * SMALL.output_bytes
    while left_processes(sandbox.zygote):
        pass  # the keeper, which ends when it has said how the command did


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_tree_of_processes_shares_the_processors_that_it_asked_for(
    cpus: int, sandbox: Sandbox
) -> None:
    """Else a fork bomb has all of the machine's."""
    if os.cpu_count() == 1:
        pytest.skip("one processor is shared anyway")
    if "cgroups (" in sandbox.describe():
        code = (
            "import os, time\nends = time.monotonic() + 3\nchildren = [os.fork() for _ in '12']\n"
            "while time.monotonic() < ends: pass\n"
            "if all(children): os.wait(); os.wait(); print(sum(os.times()[:4]))\n"
        )
        used_s = float(run(sandbox, code, limits=StageLimits(wall_us=20_000_000, cpus=cpus)).stdout)
        assert used_s < 1.2 * cpus * 3, "the kernel gives it no more"
        return
    code = (
        "import os, time\n"
        "if os.fork() and os.fork() and os.fork(): time.sleep(600)\n"
        f"while len(os.sched_getaffinity(0)) > {cpus}: pass\n"
        "print(os.fork() and len(os.sched_getaffinity(0)), flush=True); time.sleep(600)\n"
    )
    ran = run(sandbox, code, limits=StageLimits(wall_us=3_000_000, cpus=cpus))
    assert ran.stdout.split().count(str(cpus)) == 3, ran


def test_a_command_gets_its_input_and_files_and_gives_its_output(sandbox: Sandbox) -> None:
    code = (
        "import sys, pathlib\n"
        "print(sys.stdin.read() + pathlib.Path('in/data').read_text())\n"
        "pathlib.Path('out').mkdir(); pathlib.Path('out/made').write_text('made')\n"
        "sys.exit(3)\n"
    )
    files = {"main.py": code.encode(), "in/data": b" there"}
    ran = sandbox.run(
        [*PYTHON, "main.py"],
        files=files,
        stdin=b"hello",
        limits=QUICK,
        keeps_files=True,
    )
    assert (ran.stdout, ran.exit_code, ran.hit) == ("hello there\n", 3, "")
    assert ran.files == {**files, "out/made": b"made"}


def test_options_of_python_are_not_taken_for_a_script(sandbox: Sandbox) -> None:
    ran = sandbox.run([*PYTHON, "-c", "print(1)"], files={}, limits=QUICK)
    assert (ran.stdout, ran.exit_code) == ("1\n", 0), ran


def test_of_what_is_left_only_regular_files_are_taken(
    sandbox: Sandbox, host: Mapping[str, str]
) -> None:
    code = (
        f"import os\nos.symlink('{host['secret']}', 'link'); os.symlink('/etc', 'etc')\n"
        "os.mkfifo('fifo'); open('sparse', 'wb').truncate(7 << 20)\n"
        "open('huge', 'wb').truncate(8 << 20)\n"
    )
    ran = run(sandbox, code, limits=SMALL, keeps_files=True)
    assert set(ran.files) <= {"main.py", "sparse", "huge"}, list(ran.files)
    assert sum(map(len, ran.files.values())) <= SMALL.disk_bytes


def test_an_interpreter_that_lies_below_tmp_runs_commands(tmp_path: Path) -> None:
    """As where the repository was cloned there: a command's own `/tmp` hides the machine's."""
    place = tmp_path / "venv"
    venv.create(place, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(place)})
    Path(packages, "all.pth").write_text("\n".join(filter(None, sys.path)))
    python = str(place / "bin" / "python")
    code = b"import sys\nprint(sys.prefix)\nopen(sys.prefix + '/mine', 'w')"
    with sandbox_process(python=python) as sandbox:
        ran = sandbox.run([python, "-I", "main.py"], files={"main.py": code}, limits=QUICK)
        assert ran.stdout == f"{place}\n"
        assert "Read-only file system" in ran.stderr


def test_runs_know_nothing_of_each_other(sandbox: Sandbox) -> None:
    run(sandbox, "open('/tmp/mine', 'w').write('secret of one tenant')")
    ran = run(sandbox, "import os\nprint(os.path.exists('/tmp/mine'), os.listdir('.'))")
    assert ran.stdout == "False ['main.py']\n"


def test_a_file_name_does_not_leave_the_sandbox(sandbox: Sandbox) -> None:
    for name in ("../x", "/etc/x"):
        with pytest.raises(PlexError, match="leaves its directory"):
            sandbox.run(["/bin/true"], files={name: b""}, limits=QUICK)


def test_a_command_has_a_group_of_its_own_where_one_is_delegated(sandbox: SandboxProcess) -> None:
    waits = "import sys, time\nfor line in open('/proc/1/cgroup'): print(line)\n"
    ran = run(sandbox, waits, limits=QUICK)
    is_grouped = "cgroups (memory, pids, cpu)" in sandbox.describe()
    assert is_grouped or "no cgroups, because" in sandbox.describe()
    assert ("plexsvc-run-" in ran.stdout) == is_grouped
    assert not list(Path("/sys/fs/cgroup").glob("**/plexsvc-run-*")), "and it is gone"


@pytest.mark.parametrize("command", [("/bin/sleep", "600"), (*PYTHON, "main.py")])
def test_a_command_dies_with_the_worker(command: tuple[str, ...]) -> None:
    code = (
        "from plexsvc.reward.sandbox.opening import open_sandbox\n"
        "from plexsvc.reward.sandbox.base import StageLimits\n"
        "box = open_sandbox(); print(box._zygote.pid, flush=True)\n"
        "files = {'main.py': b'import time; time.sleep(600)'}\n"
        f"box.run({command!r}, files=files, limits=StageLimits())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        zygote = int(worker.stdout.readline())
        while len(left_processes(zygote)) < 2:  # keeper and command
            pass
        left = left_processes(zygote)
        worker.kill()
    while any(Path(f"/proc/{process}").exists() for process in [zygote, *left]):
        pass


def test_a_zygote_that_dies_fails_what_runs_next() -> None:
    with sandbox_process() as sandbox:
        assert run(sandbox, "print(1)").stdout == "1\n"
        os.kill(sandbox.zygote, signal.SIGKILL)
        with pytest.raises(PlexError, match=r"zygote died|could not be run"):
            run(sandbox, "print(1)")


def test_what_ran_before_is_not_in_the_memory_of_what_runs_now(sandbox: Sandbox) -> None:
    ran, never_ran = secrets.token_hex(16), secrets.token_hex(16)
    run(sandbox, f"held = '{ran}'; print(held)")
    assert times_in_memory(sandbox, ran) == times_in_memory(sandbox, never_ran)


def times_in_memory(sandbox: Sandbox, word: str) -> int:
    """Return how often a script that knows a word in two halves finds it in its own memory."""
    return int(
        run(
            sandbox,
            "import re\n"
            f"want, found = ({word[:16]!r} + chr(0)[1:] + {word[16:]!r}).encode(), 0\n"
            "for line in open('/proc/self/maps'):\n"
            "    low, high, kind = re.match('([0-9a-f]+)-([0-9a-f]+) (....)', line).groups()\n"
            "    if kind[0] == 'r' and '[v' not in line:\n"
            "        with open('/proc/self/mem', 'rb') as memory:\n"
            "            memory.seek(int(low, 16))\n"
            "            found += memory.read(int(high, 16) - int(low, 16)).count(want)\n"
            "print(found)\n",
        ).stdout
    )


@pytest.mark.parametrize(
    ("code", "stdout", "exit_code"),
    [
        ("import sys; print(sys.argv, __name__)", "['main.py'] __main__\n", 0),
        ("import sys; sys.exit(3)", "", 3),
        ("raise SystemExit('why')", "", 1),
        ("1 / 0", "", 1),
        ("import atexit; atexit.register(print, 'last'); print('first')", "first\nlast\n", 0),
        ("import threading; threading.Timer(0.1, print, ['late']).start()", "late\n", 0),
        ("import os; print(sorted(os.environ))", "{environment}\n", 0),
        (
            "import sys; print([m for m in sys.modules if 'plexsvc' in m], sys.flags.isolated)",
            "[] 1\n",
            0,
        ),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'])", "2\n", 0),
    ],
)
def test_a_script_runs_as_in_an_interpreter_of_its_own(
    code: str, stdout: str, exit_code: int, sandbox: Sandbox
) -> None:
    ran = run(sandbox, code)
    expected = stdout.replace("{environment}", str(sorted(ENVIRONMENT)))
    assert (ran.stdout, ran.exit_code) == (expected, exit_code), ran
    assert "zygote" not in ran.stderr


KILLED_MIDWAY = """
import os, signal
from plexsvc.reward.sandbox import zygote
def written(process, **_):
    print(process, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
zygote._write_maps = written
zygote._user_namespace()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace for others")
def test_a_zygote_that_is_killed_while_it_starts_leaves_no_process() -> None:
    command = [sys.executable, "-c", KILLED_MIDWAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as zygote:
        assert zygote.stdout is not None
        holder = int(zygote.stdout.readline())
        assert zygote.wait() == -signal.SIGKILL
        wait_until(lambda: not is_alive(holder), what="the holder of its namespace is gone")


def test_where_nothing_isolates_nothing_runs() -> None:
    sandbox = NoSandbox("no sandbox: install libseccomp2")
    with pytest.raises(PlexError, match="was not run: no sandbox: install libseccomp2"):
        sandbox.run(["/bin/true"], files={}, limits=QUICK)

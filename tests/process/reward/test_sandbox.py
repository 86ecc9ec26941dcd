"""The sandbox against hostile code, run for real; what each attempt leaves is looked for."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from plexsvc.errors import PlexError
from plexsvc.reward.sandbox.base import Limits, Ran, Sandbox
from plexsvc.reward.sandbox.opening import NoSandbox
from tests.rigs.hostile_code import GREEDY, HARMLESS, PRIVILEGED
from tests.rigs.sandbox_process import sandbox_process

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
QUICK = Limits(wall_us=20_000_000)
MARK = f"mark-{secrets.token_hex(8)}"
SMALL = Limits(wall_us=2_000_000, memory_bytes=128 << 20, disk_bytes=8 << 20, max_processes=16)
"""A greedy attempt is ended by these."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_process() as found:
        assert found.is_available(), found.describe()
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


def run(sandbox: Sandbox, code: str, *, limits: Limits = QUICK, keeps_files: bool = False) -> Ran:
    return sandbox.run(
        [sys.executable, "-I", "-S", "main.py", MARK],
        files={"main.py": code.encode()},
        limits=limits,
        keeps_files=keeps_files,
    )


def left_processes(mark: str = MARK) -> list[int]:
    """Return the processes that commands of these tests left, by an argument that all have."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


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
def test_greed_is_ended_and_leaves_nothing(name: str, sandbox: Sandbox) -> None:
    ran = run(sandbox, GREEDY[name], limits=SMALL)
    if name == "leave a daemon":
        assert ran.exit_code == 0
    else:
        assert ran.hit or ran.exit_code != 0, ran
    assert ran.run_us < 10_000_000
    assert len(ran.stdout) + len(ran.stderr) <= 4 * SMALL.output_bytes
    assert left_processes() == []


def test_a_command_gets_its_input_and_files_and_gives_its_output(sandbox: Sandbox) -> None:
    code = (
        "import sys, pathlib\n"
        "print(sys.stdin.read() + pathlib.Path('in/data').read_text())\n"
        "pathlib.Path('out').mkdir(); pathlib.Path('out/made').write_text('made')\n"
        "sys.exit(3)\n"
    )
    files = {"main.py": code.encode(), "in/data": b" there"}
    ran = sandbox.run(
        [sys.executable, "-I", "-S", "main.py"],
        files=files,
        stdin=b"hello",
        limits=QUICK,
        keeps_files=True,
    )
    assert (ran.stdout, ran.exit_code, ran.hit) == ("hello there\n", 3, "")
    assert ran.files == {**files, "out/made": b"made"}


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


def test_runs_know_nothing_of_each_other(sandbox: Sandbox) -> None:
    run(sandbox, "open('/tmp/mine', 'w').write('secret of one tenant')")
    ran = run(sandbox, "import os\nprint(os.listdir('/tmp'), os.listdir('.'))")
    assert ran.stdout == "['box'] ['main.py']\n"


def test_a_file_name_does_not_leave_the_sandbox(sandbox: Sandbox) -> None:
    for name in ("../x", "/etc/x"):
        with pytest.raises(PlexError, match="leaves its directory"):
            sandbox.run(["/bin/true"], files={name: b""}, limits=QUICK)


def test_a_command_dies_with_the_worker() -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    code = (
        "import sys\nfrom plexsvc.reward.sandbox.opening import open_sandbox\n"
        "from plexsvc.reward.sandbox.base import Limits\n"
        "box = open_sandbox(); print('up', flush=True)\n"
        f"box.run(['/bin/sh', '-c', 'sleep 600; true', '{mark}'], files={{}}, limits=Limits())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        while len(left_processes(mark)) < 2:  # the worker itself, and the command
            pass
        worker.kill()
    while left_processes(mark):
        pass


def test_where_nothing_isolates_nothing_runs() -> None:
    sandbox = NoSandbox("no sandbox: install libseccomp2")
    with pytest.raises(PlexError, match="was not run: no sandbox: install libseccomp2"):
        sandbox.run(["/bin/true"], files={}, limits=QUICK)

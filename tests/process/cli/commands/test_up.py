"""`plexctl up` brings a whole cluster up, one to a directory, and takes all of it down again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plexsvc.cluster.places import read_card
from tests.rigs import light_nodes
from tests.rigs.processes import command_of, descendants, is_alive, running
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONFIG = """
listen = "127.0.0.1:0"
[[nodes]]
node_id = "only"
devices = [{ kind = "train", bytes_total = 1000000 }]
"""
CONTROLLER = """
import plexclient as plex
with plex.connect() as cluster, cluster.job("noop") as job:
    actor = job.deploy("actor", model="", backend="noop", role="actor")
    actor.zero_grad()
    job.report(step=1, reward=0.5)
    print("done", job.job_id)
"""


def plexctl(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plexsvc.cli.main", *arguments],
        env={
            **os.environ,  # noqa: TID251 - to be inherited
            **light_nodes.environment(state_dir),
            "PLEX_STATE_DIR": str(state_dir),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.fixture
def cluster_pid(tmp_path: Path) -> Iterator[int]:
    """The process of a detached cluster in `tmp_path`."""
    (tmp_path / "cluster.toml").write_text(CONFIG)
    done = plexctl(tmp_path, "up", "--config", str(tmp_path / "cluster.toml"), "--detach", "--json")
    assert done.returncode == 0, done.stderr
    pid = json.loads(done.stdout)["pid"]
    family = [pid, *descendants(pid)]
    yield pid
    if is_alive(pid):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not any(is_alive(p) for p in family), what="the cluster's processes gone")


def state_manager(state_dir: Path) -> int:
    """Return since when the state manager has its socket, 0 while there is none."""
    status = json.loads(plexctl(state_dir, "status", "--json").stdout)
    path = Path(status["nodes"][0]["address"]["state_manager"].removeprefix("unix:"))
    return path.stat().st_ctime_ns if path.exists() else 0


def agent_pid(cluster: int) -> int:
    for pid in descendants(cluster):
        if "plexsvc.node.agent" in command_of(pid):
            return pid
    raise AssertionError("no node agent runs")


def run_controller(state_dir: Path) -> str:
    """Run the controller; return its job."""
    (state_dir / "loop.py").write_text(CONTROLLER)
    done = plexctl(state_dir, "submit", "--attach", str(state_dir / "loop.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = done.stdout.splitlines()[0]
    assert f"done {job_id}" in done.stdout
    return job_id


def test_a_cluster_runs_a_submitted_controller_and_leaves_nothing_at_term(
    tmp_path: Path, cluster_pid: int
) -> None:
    """So does one whose node agent was killed: it is replaced, and takes jobs again."""
    up, log = ("up", "--config", str(tmp_path / "cluster.toml")), (tmp_path / "up.log").read_bytes()
    second = plexctl(tmp_path, *up)
    assert second.returncode == 1
    assert "runs in" in second.stderr
    second = plexctl(tmp_path, *up, "--detach")
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert f"already (pid {cluster_pid})" in line
    assert (tmp_path / "up.log").read_bytes().startswith(log), "it is the first one's"
    job_id = run_controller(tmp_path)
    status = json.loads(plexctl(tmp_path, "status", "--json").stdout)
    assert [device["kind"] for device in status["devices"]] == ["train", "reward"]
    jobs = json.loads(plexctl(tmp_path, "job", "list", "--all", "--json").stdout)["jobs"]
    assert [(job["job_id"], job["state"]) for job in jobs] == [(job_id, "JOB_STATE_COMPLETED")]
    first, before = agent_pid(cluster_pid), state_manager(tmp_path)
    below = descendants(first)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="what it ran is gone")
    wait_until(lambda: state_manager(tmp_path) not in {0, before}, what="the new agent has joined")
    assert agent_pid(cluster_pid) != first
    run_controller(tmp_path)
    family = [cluster_pid, *descendants(cluster_pid)]
    os.kill(cluster_pid, signal.SIGTERM)
    wait_until(lambda: not any(is_alive(pid) for pid in family), what="all processes gone")
    assert read_card(tmp_path) is None
    assert plexctl(tmp_path, "status").returncode == 1


def test_agents_outlive_a_killed_service_and_down_ends_them(
    tmp_path: Path, cluster_pid: int
) -> None:
    agent = agent_pid(cluster_pid)
    (state_manager,) = running("plexsvc.statemanager.main", below=agent)
    os.kill(cluster_pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(cluster_pid), what="the service is gone")
    node = [agent, *descendants(agent)]
    assert state_manager in node
    assert is_alive(agent)
    down = plexctl(tmp_path, "down")
    assert down.returncode == 0, down.stderr
    assert not any(is_alive(pid) for pid in node)

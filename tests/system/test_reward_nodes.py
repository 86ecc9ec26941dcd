"""Reward workers on every node: spread, lost with their nodes, and one GPU to one worker."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import plexclient as plex
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.cluster.places import keys_file
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.live_cluster import (
    TETHERED,
    LiveCluster,
    rewards_address,
    start_cluster,
)
from tests.rigs.processes import descendants, name_of, running
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SLOTS = '{ kind = "reward", cpus = 2, bytes_total = 4_294_967_296 }'
STAND_IN = '{ kind = "reward", gpu = 0, bytes_total = 1_048_576 }'
NODES = {"left": [SLOTS], "right": [SLOTS, STAND_IN]}
KILLS = 12

HOLDS = """
import json, os, time
begun = time.monotonic()
time.sleep(0.3)
seen = os.environ.get("CUDA_VISIBLE_DEVICES")
print(json.dumps({"score": 1, "detail": json.dumps([seen, begun, time.monotonic()])}))
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f'reward.listen = "127.0.0.1:{taken.getsockname()[1]}"\n'
    directory = tmp_path_factory.mktemp("rewards")
    with start_cluster(directory, nodes=NODES, extra=listen) as cluster:
        yield cluster


@pytest.fixture
def job(live: LiveCluster) -> Iterator[plex.Job]:
    with live.connect() as connection, connection.job("spread") as opened:
        yield opened


def hosts(live: LiveCluster) -> dict[str, int]:
    """Return the process of each node's host of workers, of those whose agents answer."""
    found = {}
    for node in live.status().nodes:
        with (
            contextlib.suppress(grpc.RpcError),  # an agent that was killed is not back yet
            open_blocking_channel(node.address.agent, live.keys) as channel,
        ):
            stub = node_pb2_grpc.NodeStub(channel)
            for proc in stub.Describe(node_pb2.NodeDescribeRequest(), timeout=120).procs:
                if proc.wpg_id.startswith("reward-"):
                    found[node.node_id] = proc.pid
    return found


def workers(live: LiveCluster, node: str) -> list[int]:
    """Return the processes of a node's workers."""
    pid = hosts(live).get(node)
    below = descendants(pid) if pid is not None else []
    return [one for one in below if name_of(one) == "reward-worker"]


def plexctl(live: LiveCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments]
    place = ["--state-dir", str(live.state_dir)]
    return subprocess.run([*command, *place], capture_output=True, text=True, check=False)


def test_a_batch_runs_on_every_node_and_a_closed_one_takes_no_more(
    live: LiveCluster, job: plex.Job
) -> None:
    tests = [[{"stdin": "1", "stdout": "2"}]] * 40
    code = "import time; time.sleep(0.4); print(int(input()) * 2)"
    batch = job.score.submit("code_python", [code] * 40, references=tests)
    wait_until(lambda: bool(workers(live, "left")), what="workers on the left")
    wait_until(lambda: bool(workers(live, "right")), what="workers on the right")
    assert "2 reward" in plexctl(live, "node", "list").stdout
    assert plexctl(live, "node", "cordon", "right").returncode == 0
    wait_until(lambda: not workers(live, "right"), what="no worker is left on the right")
    assert [score.value for score in batch.result()] == [1.0] * 40
    assert not workers(live, "right")
    assert plexctl(live, "node", "uncordon", "right").returncode == 0


def test_kills_of_hosts_agents_and_workers_change_no_score(
    live: LiveCluster, job: plex.Job
) -> None:
    code = ["print(int(input()) * 2)", "print(0)", "import time; time.sleep(0.3); print(4)"] * 3
    tests = [[{"stdin": str(n % 3), "stdout": str(n % 3 * 2)}] for n in range(len(code))]
    undisturbed = [score.value for score in job.score("code_python", code, references=tests)]
    assert undisturbed == [1.0, 0.0, 1.0] * 3
    for seed in range(KILLS):
        dice = random.Random(seed)
        batch = job.score.submit("code_python", code, references=tests)
        time.sleep(dice.uniform(0, 1))  # noqa: TID251 - the moment of the kill
        victims = (
            lambda: list(hosts(live).values()),
            lambda: running("plexsvc.node.agent", below=live.pid),
            lambda: workers(live, "left") + workers(live, "right"),
            lambda: running("plexsvc.reward.main", below=live.pid),
        )[seed % 4]()
        for victim in victims[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        found = batch.result()
        assert [score.value for score in found] == undisturbed, (seed, found)
        assert {score.verdict for score in found} == {"scored"}, (seed, found)


def test_one_gpu_is_one_workers_and_is_free_after_kill_9(
    live: LiveCluster, job: plex.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holds.py").write_text(HOLDS)
    run = ["--stage", "run:gpu=1,timeout=30s,mem=256MiB:python3 holds.py"]
    added = plexctl(live, "reward", "add", "holds", *run, "--file", "holds.py")
    assert added.returncode == 0, added
    batch = job.score.submit("holds", ["a"] * 6)
    wait_until(lambda: bool(_with_gpu(live)), what="a worker has the GPU")
    os.kill(_with_gpu(live)[0], signal.SIGKILL)
    told = [json.loads(score.detail) for score in batch.result()]
    assert {seen for seen, _, _ in told} == {"0"}
    spans = sorted((begun, ended) for _, begun, ended in told)
    assert all(ended <= later for (_, ended), (later, _) in itertools.pairwise(spans))


def _with_gpu(live: LiveCluster) -> list[int]:
    """Return the workers that hold the GPU: their sandbox's zygote sees it."""
    return [one for one in workers(live, "right") if _sees_gpu(one)]


def _sees_gpu(worker: int) -> bool:
    for child in descendants(worker):
        with contextlib.suppress(OSError):
            if b"CUDA_VISIBLE_DEVICES=0\0" in Path(f"/proc/{child}/environ").read_bytes():
                return True
    return False


def test_a_router_of_another_host_scores(live: LiveCluster, tmp_path: Path) -> None:
    config = tmp_path / "router.toml"
    config.write_text(
        f'listen = "127.0.0.1:0"\nscheduler = "{live.scheduler}"\n'
        f'reward = "{rewards_address(live)}"\nkeys_file = "{keys_file(live.state_dir)}"\n'
        f'[tokens]\napart = "default"\n'
    )
    assert rewards_address(live).startswith("127.0.0.1:")
    command = [*TETHERED, "-m", "plexsvc.router.main", "--config", str(config)]
    router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert router.stdout is not None
        address = json.loads(router.stdout.readline())["address"]
        with plex.connect(address, token="apart") as connection, connection.job("apart") as job:
            scores = job.score("exact", ["a", "b"], references=["a", "a"])
        assert [score.value for score in scores] == [1.0, 0.0]
    finally:
        router.terminate()
        router.communicate(timeout=120)


def test_what_no_node_has_is_refused_when_it_is_added(
    live: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holds.py").write_text(HOLDS)
    for asked in ("gpu=2", "cpu=3"):
        run = ["--stage", f"run:{asked},timeout=30s,mem=256MiB:python3 holds.py"]
        added = plexctl(live, "reward", "add", "wide", *run, "--file", "holds.py")
        assert added.returncode != 0, added
        assert asked in added.stderr.replace("\n", " "), added
        assert "nodes have" in added.stderr.replace("\n", " "), added

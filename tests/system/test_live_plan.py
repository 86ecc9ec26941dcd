"""Five jobs on three node groups while one node is drained and another joins."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.scheduler.driver.journal import NOTE_EVERY
from plexsvc.sim.predict import predict
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs.another_node import another_node
from tests.rigs.live_cluster import TRAIN, LiveCluster, start_cluster
from tests.rigs.live_jobs import PacedJob, run_together
from tests.rigs.waiting import wait_until
from tests.system.test_operating import plexctl, states

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

JOBS = [
    PacedJob(name=f"job-{at}", seed=at, cycles=20 - at, gap_s=0.3 + 0.1 * at, start_s=0.1 * at)
    for at in range(5)
]
SAME_SIZE = 0.25
"""Loose, for other work may slow a part of a test; `benchmarks/live_replay.py` has the figure."""
OPERATOR = 'tokens = { "token-of-ops" = "ops" }\n'


def change_nodes(cluster: LiveCluster, address: str) -> None:
    """Take a node in and another out while the jobs run."""
    wait_until(
        lambda: len(residents(cluster)) == len(JOBS), what="all jobs are placed", timeout_s=60
    )
    assert len(set(residents(cluster).values())) == 3
    assert plexctl(cluster, "node", "add", address)["state"] == "up"
    plexctl(cluster, "node", "drain", "node-b", "--wait")
    assert states(cluster)["node-b"] == "drained"
    assert "node-b" not in residents(cluster).values()


def residents(cluster: LiveCluster) -> dict[str, str]:
    """Return the node of each deployment that is placed."""
    nodes = plexctl(cluster, "node", "list")["nodes"]
    return {r["deployment_id"]: node["node_id"] for node in nodes for r in node["residents"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Recording]:
    """What the service recorded of the five jobs and the changes."""
    folder = tmp_path_factory.mktemp("planned")
    nodes = {f"node-{name}": [TRAIN] for name in "abc"}
    with (
        start_cluster(folder, nodes=nodes, extra=OPERATOR) as live,
        another_node(
            live, tmp_path_factory.mktemp("node-d"), node_id="node-d", device=TRAIN
        ) as address,
        ThreadPoolExecutor(1) as pool,
    ):
        cycles = pool.submit(run_together, live, JOBS, model=tiny_model)
        change_nodes(live, address)
        assert cycles.result(120) == [job.cycles for job in JOBS]
        yield journal.read(read_journal(str(live.state_dir / "plexsvc.db")).rows)


def test_jobs_leave_a_drained_node_and_nothing_is_lost(run: Recording) -> None:
    verdict = verify(run)
    assert verdict.difference is None
    assert verdict.compared >= verdict.events - 2 * NOTE_EVERY


def test_the_run_is_predicted_with_its_drain_and_join(run: Recording) -> None:
    found = predict(run)
    assert found.is_complete
    assert len(found.jobs) == len(JOBS)
    assert abs(found.run.error) < SAME_SIZE

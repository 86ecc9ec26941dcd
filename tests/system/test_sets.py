"""Two jobs that would have waited for each other's devices declare theirs, and run in turn."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_two_jobs_that_would_have_closed_a_circle_run_in_turn(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    """Each wants a rollout and a judge, and two devices for instances are free."""
    model = str(tiny_model)
    policy = plex.Declared("actor", model=model, backend="noop")
    engine = plex.Declared("rollout", model=model, backend="vllm", max_model_len=64)
    judge = plex.Declared("judge", model=model, backend="vllm", max_model_len=64)
    ends: list[str] = []

    def second() -> None:
        with cluster.connect() as connection, connection.job("circle-second") as job:
            made = job.deploy_all(policy, engine, judge)
            ends.append("second has " + " ".join(one.name for one in made))
            made[2].generate([[1, 2]], max_tokens=2)

    thread = threading.Thread(target=second)
    with (
        cluster.connect() as connection,
        connection.job("circle-third") as third,
        connection.job("circle-first") as job,
    ):
        third.deploy("rollout", model=model, backend="vllm", max_model_len=64)
        _, rollout, judging = job.deploy_all(policy, engine, judge)
        thread.start()
        wait_until(lambda: _waits(connection, "circle-second"), what="the second job's set")
        assert len(judging.generate([[1, 2]], max_tokens=2)) == 1
        assert len(rollout.generate([[1, 2]], max_tokens=2)) == 1
        ends.append("first is done")
    thread.join(120)
    assert ends == ["first is done", "second has actor rollout judge"]


def _waits(connection: plex.Cluster, name: str) -> bool:
    """Return whether a job is there whose deployments all wait."""
    found = [job for job in connection.status().jobs if job.name == name]
    return bool(found) and len(found[0].deployment_ids) == 3

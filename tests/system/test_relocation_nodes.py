"""Nodes that die while a deployment is on its way between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import plexclient as plex
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.vocabulary import RelocationStage
from tests.rigs.inner_cluster import Gate, InnerCluster, node, start_inner
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

STAGES = [RelocationStage.WAITING, RelocationStage.CARRYING, RelocationStage.RESTORING]


def deploy(job: plex.Job, model: Path, *, seed: int) -> plex.Actor:
    return job.deploy(
        "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=seed
    )


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[InnerCluster]:
    """A cluster of its own for tests that kill nodes; leases are short so that they are missed."""
    config = SchedulerConfig(node_lease_us=2_000_000)
    with start_inner(tmp_path, nodes=(node("left"), node("right")), scheduler=config) as running:
        yield running


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_new_node_that_dies_leaves_the_deployment_where_it_is(
    frail: InnerCluster, tiny_model: Path, stage: RelocationStage
) -> None:
    with frail.connect() as connection, connection.job("stays") as job:
        actor = deploy(job, tiny_model, seed=0)
        run_interleaved([Program(actor, 0, steps=1)])
        before = actor.digest()
        frail.on_stage[stage] = lambda: frail.kill_agent("right")
        frail.relocate(actor, ("right", 0))
        ended = frail.wait()
        assert ended.stage is RelocationStage.FAILED
        assert ended.fault is not None
        assert ended.fault.code in {"node_lost", "worker_died", "unavailable"}, ended
        assert frail.places(actor) == (("left", 0),)
        assert actor.digest() == before
        run_interleaved([Program(actor, 1, steps=1)])


def test_an_old_node_that_dies_takes_the_deployment_with_it(
    frail: InnerCluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with frail.connect() as connection:
        with pytest.raises(plex.PlexError) as caught, connection.job("dies") as job:  # noqa: PT012 - leaving the job is part of it
            actor = deploy(job, tiny_model, seed=0)
            gate = Gate(frail, monkeypatch)
            frail.relocate(actor, ("right", 0))
            gate.wait_until_entered()
            frail.kill_agent("left")
            assert frail.wait().stage is RelocationStage.FAILED
            gate.open()
            run_interleaved([Program(actor, 0)])
        assert caught.value.code in {"node_lost", "worker_died", "deployment_failed"}, caught.value
    wait_until(lambda: not frail.pids(), what="no process is left")

"""Checkpoints that the system makes while a real job trains, and jobs that go on from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster, start_cluster
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with start_cluster(tmp_path_factory.mktemp("checkpoints")) as service:
        yield service


def deploy(job: plex.Job, model: Path, **more: Any) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        micro_batch_tokens=64,
        **more,
    )


def train(actor: plex.Actor, *, first: int, last: int) -> None:
    """Train the steps from `first` to `last`, each on a batch of its own."""
    for number in range(first, last + 1):
        actor.forward_backward(fixed_batch(number), loss="ppo")
        actor.step(position={"batch": number})


def wait_for(live: LiveCluster, job: plex.Job, found: str) -> None:
    """Return once `explain` says something of a job."""
    while found not in live.explain(job.job_id):
        pass


def test_a_checkpoint_has_the_state_of_its_step(live: LiveCluster, tiny_model: Path) -> None:
    with live.connect() as connection, connection.job("trains") as job:
        actor = deploy(job, tiny_model, durability="step", checkpoint_every=2, keep=1)
        train(actor, first=1, last=2)
        wait_for(live, job, "has a checkpoint of step 2")
        train(actor, first=3, last=4)
        wait_for(live, job, "has a checkpoint of step 4")
        train(actor, first=5, last=5)
        expected = actor.digest()
        with connection.job("goes-on") as other:
            again = deploy(other, tiny_model)
            again.load(f"{actor.deployment_id}@4", optimizer=True)
            train(again, first=5, last=5)
            assert again.digest() == expected
            with pytest.raises(plex.PlexError, match="actor@2"):
                again.load(f"{actor.deployment_id}@2")

"""A service that is killed comes back, adopts what runs, and its jobs go on with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import TRAIN, Service
from tests.rigs.workloads import Program

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, nodes={"only": [TRAIN]}) as running:
        yield running


def deploy(job: plex.Job, model: Path, *, seed: int) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        seed=seed,
        micro_batch_tokens=64,
    )


def test_a_job_goes_on_bit_for_bit_when_the_service_is_killed_between_operations(
    service: Service, tiny_model: Path
) -> None:
    with service.live.connect() as connection:
        with connection.job("alone") as job:
            alone = deploy(job, tiny_model, seed=3)
            for _ in Program(alone, 3).operations():
                pass
            expected = alone.digest()
        with connection.job("restarted") as job:
            actor = deploy(job, tiny_model, seed=3)
            for done, _ in enumerate(Program(actor, 3).operations()):
                if done in {1, 2, 5}:
                    os.kill(service.live.pid, signal.SIGKILL)
                    service.start()
            assert actor.digest() == expected
        assert [j.reason for j in service.live.jobs().values()] == ["", ""]

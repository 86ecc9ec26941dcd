"""An optimizer in host memory: its device is free meanwhile, and all is saved as any other's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster, rank_processes
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, fill_other_devices, fixed_batch, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow]


def deploy(job: plex.Job, model: Path, *, on: str = "host") -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="fsdp",
        optimizer=plex.AdamW(lr=1e-2, on=on),
        micro_batch_tokens=64,
    )


def test_a_step_is_made_while_another_job_runs_on_the_device(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with (
        cluster.connect() as connection,
        connection.job("host-steps") as steps,
        connection.job("host-runs") as runs,
    ):
        first = deploy(steps, tiny_model)
        fill_other_devices(steps, 2, model=tiny_model)
        second = deploy(runs, tiny_model, on="device")
        first.forward_backward(fixed_batch(1), loss="ppo")
        second.forward_backward(fixed_batch(2), loss="ppo")
        (rank,) = rank_processes(cluster, [second.deployment_id])
        os.kill(rank, signal.SIGSTOP)
        try:
            running = second.forward_backward.submit(fixed_batch(3), loss="ppo")
            is_running = lambda: "runs forward_backward" in cluster.explain(runs.job_id)  # noqa: E731
            wait_until(is_running, what="the operation of a rank that stands still runs")
            assert first.step().metrics["steps"] == 1
            assert is_running()
            assert not running.done()
        finally:
            os.kill(rank, signal.SIGCONT)
        running.result()
        first.forward_backward(fixed_batch(4), loss="ppo")


def test_what_is_saved_is_loaded_by_an_optimizer_on_either_side(
    cluster: LiveCluster, tiny_model: Path, tmp_path: Path
) -> None:
    with cluster.connect() as connection, connection.job("host-saves") as job:
        actor = deploy(job, tiny_model)
        run_interleaved([Program(actor, 0)])
        actor.save(tmp_path / "host")
        saved = actor.digest()
        run_interleaved([Program(actor, 1)])
        trained = actor.digest()
        assert trained != saved
        actor.load(tmp_path / "host", optimizer=True)
        assert actor.digest() == saved
        run_interleaved([Program(actor, 1)])
        assert actor.digest() == trained
    with cluster.connect() as connection, connection.job("host-loads") as job:
        actor = deploy(job, tiny_model, on="device")
        actor.load(tmp_path / "host", optimizer=True)
        assert actor.digest() == saved
        actor.export(tmp_path / "exported")


def test_moments_on_the_host_are_on_no_device(cluster: LiveCluster, tiny_model: Path) -> None:
    taken = {}
    for on in ("device", "host"):
        with cluster.connect() as connection, connection.job(f"host-sizes-{on}") as job:
            taken[on] = deploy(job, tiny_model, on=on).info.state_bytes
    assert taken["host"] == taken["device"] // 2


def test_where_no_step_can_be_made_on_the_host_the_deployment_is_refused(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("host-refused") as job:
        with pytest.raises(plex.PlexError, match="optimizer on 'host'") as refused:
            job.deploy(
                "actor", model=str(tiny_model), backend="noop", optimizer=plex.AdamW(on="host")
            )
        assert refused.value.code == "bad_request"
        assert not cluster.jobs()[job.job_id].deployment_ids

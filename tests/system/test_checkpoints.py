"""Checkpoints that the system makes while a real job trains, and jobs that go on from them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import plexclient as plex
from tests.rigs.chaos_proxy import Faults
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.processes import running
from tests.rigs.s3_server import S3Server
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]


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


def wait_for(cluster: LiveCluster, job: plex.Job, found: str) -> None:
    """Return once `explain` says something of a job."""
    told = ""
    for _ in range(900):
        told = cluster.explain(job.job_id)
        if found in told:
            return
        Event().wait(0.1)
    raise AssertionError(told)


def ckpt(cluster: LiveCluster, *arguments: str, token: str = "") -> dict[str, Any]:
    """Return what a command of `plexctl ckpt` prints."""
    return plexctl(cluster, "ckpt", *arguments, token=token)


def plexctl(cluster: LiveCluster, *arguments: str, token: str = "") -> dict[str, Any]:
    """Return what a command of `plexctl` prints."""
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments, "--json"]
    where = ["--address", cluster.address, "--token", token or cluster.token]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_checkpoint_has_the_state_of_its_step(cluster: LiveCluster, tiny_model: Path) -> None:
    with cluster.connect() as connection, connection.job("trains") as job:
        actor = deploy(job, tiny_model, durability="step", checkpoint_every=2, keep=1)
        train(actor, first=1, last=2)
        wait_for(cluster, job, "has a checkpoint of step 2")
        train(actor, first=3, last=4)
        wait_for(cluster, job, "has a checkpoint of step 4")
        train(actor, first=5, last=5)
        expected = actor.digest()
    assert [one["name"] for one in ckpt(cluster, "list")["checkpoints"]] == [
        f"{job.job_id}/actor@4"
    ]
    assert ckpt(cluster, "verify", "trains/actor")["position"] == '{"batch": 4}'
    with cluster.connect() as connection, connection.job("goes-on") as other:
        again = other.resume("trains/actor@4")
        assert again.position == {"batch": 4}
        train(again, first=5, last=5)
        assert again.digest() == expected
        assert other.resume("trains/actor") is again  # which has gone on since
        assert again.digest() == expected
        wait_for(cluster, other, "has a checkpoint of step 4")
    ckpt(cluster, "export", f"{other.job_id}/actor", "exported")
    ckpt(cluster, "delete", "trains/actor@4")
    ckpt(cluster, "delete", "goes-on/actor")
    with cluster.connect() as connection, connection.job("scores") as third:
        deploy(third, Path("exported"))
        with pytest.raises(plex.PlexError, match="no checkpoint 'trains/actor'"):
            third.resume("trains/actor")


def test_a_checkpoint_that_cannot_be_written_costs_the_job_nothing(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("undisturbed") as job:
        calm = deploy(job, tiny_model)
        train(calm, first=1, last=4)
        expected = calm.digest()
    with cluster.connect() as connection, connection.job("blocked") as job:
        actor = deploy(job, tiny_model, durability="step", checkpoint_every=2)
        place = cluster.state_dir / "checkpoints/default" / job.job_id
        place.write_text("in the way")
        train(actor, first=1, last=2)
        wait_for(cluster, job, "has no checkpoint of step 2: ")
        place.unlink()
        train(actor, first=3, last=4)
        wait_for(cluster, job, "has a checkpoint of step 4")
        assert actor.digest() == expected


def test_a_state_manager_that_is_killed_meanwhile_costs_time(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("undisturbed") as job:
        calm = deploy(job, tiny_model)
        train(calm, first=1, last=3)
        expected = calm.digest()
    with cluster.connect() as connection, connection.job("killed") as job:
        actor = deploy(job, tiny_model, durability="step", checkpoint_every=1)
        train(actor, first=1, last=2)
        for pid in running("plexsvc.statemanager.main", below=cluster.pid):
            os.kill(pid, signal.SIGKILL)
        train(actor, first=3, last=3)
        assert actor.digest() == expected
        wait_for(cluster, job, "has a checkpoint of step 3")
        ckpt(cluster, "verify", f"{job.job_id}/actor@3")


def test_a_job_goes_on_from_a_checkpoint_in_an_object_store(
    cluster: LiveCluster, s3: S3Server, tiny_model: Path
) -> None:
    token = plexctl(cluster, "token", "create", "ops", "--scope", "submit")["secret"]
    with plex.connect(cluster.address, token=token) as connection, connection.job("far") as job:
        actor = deploy(job, tiny_model, durability="step", checkpoint_every=2, keep=1)
        train(actor, first=1, last=2)
        wait_for(cluster, job, "has a checkpoint of step 2")
        s3.line.turn(Faults(cut_mean_bytes=4096))
        try:
            train(actor, first=3, last=4)
            wait_for(cluster, job, "has no checkpoint of step 4: object store s3://")
        finally:
            s3.line.turn(Faults())
        assert ckpt(cluster, "verify", "far/actor", token=token)["step"] == "2"
        train(actor, first=5, last=6)
        wait_for(cluster, job, "has a checkpoint of step 6")
        train(actor, first=7, last=7)
        expected = actor.digest()
    name = f"{job.job_id}/actor@6"
    assert [one["name"] for one in ckpt(cluster, "list", token=token)["checkpoints"]] == [name]
    prefix = f"checkpoints/ops/{name}~"
    assert {one[: len(prefix)] for one in s3.objects() if "/ops/" in one} == {prefix}
    with plex.connect(cluster.address, token=token) as connection, connection.job("on") as other:
        again = other.resume("far/actor")
        assert again.position == {"batch": 6}
        train(again, first=7, last=7)
        assert again.digest() == expected
    ckpt(cluster, "export", name, "exported-from-store", token=token)
    ckpt(cluster, "delete", name, token=token)
    assert not [one for one in s3.objects() if job.job_id in one]
    with plex.connect(cluster.address, token=token) as connection, connection.job("scores") as last:
        deploy(last, Path("exported-from-store"))
        with pytest.raises(plex.PlexError, match="no checkpoint 'far/actor'"):
            last.resume("far/actor")

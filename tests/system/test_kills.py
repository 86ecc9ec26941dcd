"""What dies ends with a cause, frees what it held, and leaves the others alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2
from tests.rigs.live_cluster import TRAIN, LiveCluster, rank_processes, start_cluster
from tests.rigs.processes import descendants, is_alive, running
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fill_other_devices, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONTROLLER = """
import sys, time
import plexclient as plex
with plex.connect(sys.argv[1], token=sys.argv[2]) as cluster:
    with cluster.job("doomed", session_ttl_s=6.0) as job:
        job.deploy("actor", model=sys.argv[3], backend="noop", role="actor")
        print(job.job_id, flush=True)
        time.sleep(600)
"""


def deploy(job: plex.Job, model: Path, **options: Any) -> plex.Actor:
    optimizer = plex.AdamW(lr=1e-2)
    return job.deploy("actor", model=str(model), backend="megatron", optimizer=optimizer, **options)


def bytes_in_use(cluster: LiveCluster) -> int:
    return sum(device.bytes_used for device in cluster.status().devices)


def test_a_killed_worker_fails_its_job_with_a_cause_and_the_other_goes_on(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("survivor") as survivor:
        kept = deploy(survivor, tiny_model)
        with pytest.raises(plex.PlexError) as caught, connection.job("doomed") as job:  # noqa: PT012 - leaving the job is part of it
            doomed = deploy(job, tiny_model)
            doomed.forward_backward(fixed_batch(1), loss="ppo")
            (pid,) = rank_processes(cluster, [doomed.deployment_id])
            os.kill(pid, signal.SIGKILL)
            doomed.step()
        refusal = caught.value  # of the step, which may have come after the death was known
        assert refusal.facts.get("cause", refusal.code) == "worker_died"
        assert doomed.info.wpg_id in caught.value.message
        assert caught.value.facts["signal"] == "9"
        assert "log_tail" in caught.value.facts
        kept.forward_backward(fixed_batch(2), loss="ppo")
        assert kept.step().metrics["grad_norm"] > 0
    wait_until(lambda: bytes_in_use(cluster) == 0, what="devices freed")


def test_a_stopped_worker_is_found_by_its_silence_and_fails_its_job(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with (  # noqa: PT012 - leaving the job is part of it
        cluster.connect() as connection,
        pytest.raises(plex.PlexError) as caught,
        connection.job("frozen") as job,
    ):
        actor = deploy(job, tiny_model, parallel=plex.Parallel(tp=2))
        pids = rank_processes(cluster, [actor.deployment_id])
        os.kill(pids[0], signal.SIGSTOP)
        actor.forward_backward(fixed_batch(1), loss="ppo")
    assert caught.value.code == "worker_died"
    assert "stopped answering" in caught.value.message
    assert "in agree\n" in caught.value.message, "where the other rank waits"
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)), what="the ranks are gone")
    wait_until(lambda: bytes_in_use(cluster) == 0, what="devices freed")


def test_a_worker_that_stops_before_a_switch_does_not_hold_its_device(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("survivor") as survivor:
        kept = deploy(survivor, tiny_model)
        fill_other_devices(survivor, 2, model=tiny_model)
        with pytest.raises(plex.PlexError) as caught, connection.job("frozen") as job:  # noqa: PT012 - leaving the job is part of it
            frozen = deploy(job, tiny_model)
            frozen.forward_backward(fixed_batch(1), loss="ppo")
            (pid,) = rank_processes(cluster, [frozen.deployment_id])
            os.kill(pid, signal.SIGSTOP)
            kept.forward_backward(fixed_batch(2), loss="ppo")
            frozen.step()
        assert caught.value.code in {"worker_died", "deployment_failed"}
        assert kept.step().metrics["grad_norm"] > 0


def test_a_killed_controller_ends_its_job_after_the_grace_period(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, cluster.address, cluster.token, str(tiny_model)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert controller.stdout is not None
    job_id = controller.stdout.readline().strip()
    (rank,) = rank_processes(cluster, [f"{job_id}/actor"])
    controller.kill()
    controller.communicate()

    def has_ended() -> bool:
        return cluster.jobs()[job_id].state == service_pb2.JOB_STATE_CANCELLED

    wait_until(has_ended, what="the job of the killed controller is cancelled")
    assert "session" in cluster.jobs()[job_id].reason
    wait_until(lambda: not is_alive(rank), what="its rank is gone")


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster that a test ends."""
    place, node = tmp_path_factory.mktemp("mortal"), "orphan_us = 20_000_000"
    with start_cluster(place, nodes={"only": [TRAIN]}, node=node) as live:
        yield live


@pytest.mark.parametrize("victim", ["statemanager", "agent", "up"])
def test_nothing_remains_after_kill_9(mortal: LiveCluster, tiny_model: Path, victim: str) -> None:
    live = mortal

    def is_up() -> bool:
        agents = running("plexsvc.node.agent", below=live.pid)
        return len(agents) == 1 and [node.state for node in live.nodes()] == ["up"]

    wait_until(is_up, what="its node is up, if again")
    options = plex.ClientOptions(retry_for_s=2)
    with (  # noqa: PT012 - leaving the job is part of it
        pytest.raises(plex.PlexError) as caught,
        plex.connect(live.address, token=live.token, options=options) as connection,
        connection.job("any") as job,
    ):
        actor = deploy(job, tiny_model)
        actor.forward_backward(fixed_batch(1), loss="ppo")
        ranks = rank_processes(live, [actor.deployment_id])
        pid = _victim(victim, rank=ranks[0], up=live.pid)
        below = [*descendants(pid), *ranks]
        os.kill(pid, signal.SIGKILL)
        if victim == "statemanager":
            _kill_successors(live, rank=ranks[0])
        wait_until(
            lambda: not any(is_alive(child) for child in below),
            what=f"processes below the killed {victim} are gone",
        )
        actor.step()
    assert caught.value.code in _ENDS[victim]
    if victim == "up":
        assert not [name for name in os.listdir("/dev/shm") if "plex" in name]


_ENDS = {
    "up": {"unavailable"},
    "agent": {"node_lost", "worker_died", "deployment_failed"},
    "statemanager": {"worker_died", "deployment_failed"},
}


def _victim(name: str, *, rank: int, up: int) -> int:
    """Return the process to kill: the cluster, or the agent or state manager of the rank's node."""
    if name == "up":
        return up
    agents = running("plexsvc.node.agent", below=up)
    agent = next(agent for agent in agents if rank in descendants(agent))
    if name == "agent":
        return agent
    return next(iter(running("plexsvc.statemanager.main", below=agent)))


def _kill_successors(live: LiveCluster, *, rank: int) -> None:
    """Kill each state manager of the rank's node until one gives the rank's state up."""
    while is_alive(rank):
        with suppress(StopIteration, ProcessLookupError):  # there is none just now
            os.kill(_victim("statemanager", rank=rank, up=live.pid), signal.SIGKILL)
        threading.Event().wait(0.1)


def test_jobs_outlive_a_service_that_stands_still_for_longer_than_their_sessions(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with (
        cluster.connect() as connection,
        connection.job("one", session_ttl_s=15) as one,
        connection.job("two", session_ttl_s=15) as two,
    ):
        actors = [deploy(one, tiny_model), deploy(two, tiny_model)]
        for actor in actors:
            actor.forward_backward(fixed_batch(1), loss="ppo")
        os.kill(cluster.pid, signal.SIGSTOP)
        try:
            time.sleep(20)  # noqa: TID251 - real processes stand still for real time
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
        steps = [actor.step() for actor in actors]
        assert [step.metrics["grad_norm"] > 0 for step in steps] == [True, True]
    jobs = cluster.jobs()
    states = {jobs[job.job_id].state for job in (one, two)}
    assert states == {service_pb2.JOB_STATE_COMPLETED}

"""A durable deployment whose processes are killed ends with the bits it would have had."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster, rank_processes
from tests.rigs.processes import command_of, running
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, fill_other_devices, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE, TP2, DP2 = plex.Parallel(), plex.Parallel(tp=2), plex.Parallel(dp=2)
Outcome = tuple[list[dict[str, float]], Any]


@pytest.fixture(scope="module")
def undisturbed(cluster: LiveCluster, tiny_model: Path) -> Callable[..., Outcome]:
    """What the two steps come to in a layout, on a backend, where nothing is killed."""

    @cache
    def found(parallel: plex.Parallel, *, backend: str = "megatron", on: str = "device") -> Outcome:
        with cluster.connect() as connection, connection.job("undisturbed") as job:
            actor = deploy(
                job, tiny_model, parallel=parallel, durability="none", backend=backend, on=on
            )
            return finished(actor, [call() for call in two_steps(actor)])

    return found


def deploy(
    job: plex.Job,
    model: Path,
    *,
    parallel: plex.Parallel = ONE,
    durability: str = "step",
    backend: str = "megatron",
    on: str = "device",
) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend=backend,
        parallel=parallel,
        optimizer=plex.AdamW(lr=1e-2, on=on),
        micro_batch_tokens=64,
        durability=durability,
    )


def two_steps(actor: plex.Actor) -> list[Callable[[], Future[Any]]]:
    """Two passes before each: a small one travels in a message, a large one is staged."""
    passes = [fixed_batch(7), fixed_batch(8, sequences=100, longest=64)]
    calls: list[Callable[[], Future[Any]]] = [
        partial(actor.forward_backward.submit, batch, loss="ppo", return_logprobs=True)
        for batch in passes
    ]
    return [*calls, actor.step.submit] * 2


def finished(actor: plex.Actor, futures: list[Future[Any]]) -> Outcome:
    return [future.result().metrics for future in futures], actor.digest()


def kill(
    cluster: LiveCluster, actor: plex.Actor, *, rank: int = 0, by: signal.Signals = signal.SIGKILL
) -> None:
    """Kill a rank, once there is one: that which was killed before may not be replaced yet."""
    found = list[int]()

    def is_there() -> bool:
        with suppress(KeyError):
            found[:] = rank_processes(cluster, [actor.deployment_id], are_up=True)
        return len(found) > rank

    wait_until(is_there, what="there is a rank")
    os.kill(found[rank], by)


def kill_all_forked(cluster: LiveCluster) -> None:
    """Kill every rank and the zygotes that they are forked from, whose command line they have."""
    for pid in running("plexsvc.node.zygote", below=cluster.pid):
        if "plexsvc.worker.preload" in command_of(pid):
            with suppress(ProcessLookupError):  # ranks die with their zygote
                os.kill(pid, signal.SIGKILL)


def test_a_rank_killed_between_operations_is_replaced(
    cluster: LiveCluster, tiny_model: Path, undisturbed: Callable[..., Outcome]
) -> None:
    with cluster.connect() as connection, connection.job("killed") as job:
        actor = deploy(job, tiny_model)
        futures = list[Future[Any]]()
        for number, call in enumerate(two_steps(actor)):
            futures.append(call())
            futures[-1].result()
            if number in {1, 5}:
                kill(cluster, actor)
        assert finished(actor, futures) == undisturbed(ONE)
        told = cluster.explain(job.job_id)
    assert "was rebuilt from its state after seq 6 and 0 operations since" in told


@pytest.mark.parametrize(
    ("backend", "by", "on"),
    [
        ("megatron", signal.SIGKILL, "device"),
        ("megatron", signal.SIGSTOP, "device"),
        ("fsdp", signal.SIGKILL, "device"),
        ("megatron", signal.SIGKILL, "host"),
        ("fsdp", signal.SIGKILL, "host"),
    ],
    ids=["killed", "stopped", "fsdp", "megatron-host", "fsdp-host"],
)
def test_a_rank_killed_inside_operations_is_replaced(
    cluster: LiveCluster,
    tiny_model: Path,
    undisturbed: Callable[..., Outcome],
    backend: str,
    by: signal.Signals,
    on: str,
) -> None:
    with cluster.connect() as connection, connection.job("killed") as job:
        actor = deploy(job, tiny_model, backend=backend, on=on)
        futures = [call() for call in two_steps(actor)]
        kill(cluster, actor, by=by)  # in the first pass
        futures[1].result()
        kill(cluster, actor, by=by)  # in the first step
        futures[3].result()
        kill(cluster, actor, by=by)
        assert finished(actor, futures) == undisturbed(ONE, backend=backend, on=on)


def test_a_rank_killed_while_it_starts_is_replaced(
    cluster: LiveCluster, tiny_model: Path, undisturbed: Callable[..., Outcome]
) -> None:
    def started() -> list[int]:
        status = cluster.status()
        starting = [one.deployment_id for one in status.deployments if one.state == "starting"]
        with suppress(KeyError):  # it has no process yet
            return [pid for pid in rank_processes(cluster, starting) if pid]
        return []

    with cluster.connect() as connection, connection.job("killed") as job:
        with ThreadPoolExecutor(1) as pool:
            deploying = pool.submit(deploy, job, tiny_model)
            ranks: list[int] = []
            while not ranks and not deploying.done():
                ranks = started()
            os.kill(ranks[0], signal.SIGKILL)
            actor = deploying.result()
        assert finished(actor, [call() for call in two_steps(actor)]) == undisturbed(ONE)
        assert "was rebuilt from its state after seq 0" in cluster.explain(job.job_id)


@pytest.mark.parametrize("parallel", [TP2, DP2], ids=["tp2", "dp2"])
def test_a_group_that_loses_a_rank_is_replaced_whole(
    cluster: LiveCluster,
    tiny_model: Path,
    undisturbed: Callable[..., Outcome],
    parallel: plex.Parallel,
) -> None:
    with cluster.connect() as connection, connection.job("killed") as job:
        actor = deploy(job, tiny_model, parallel=parallel)
        futures = [call() for call in two_steps(actor)]
        futures[3].result()
        kill(cluster, actor, rank=1)
        assert finished(actor, futures) == undisturbed(parallel)


def take_turns(
    cluster: LiveCluster, model: Path, place: Path, *, is_disturbed: bool
) -> list[Outcome]:
    """Two jobs that share a device train and save, one operation each in turn."""
    with (
        cluster.connect() as connection,
        connection.job("one") as one,
        connection.job("two") as two,
    ):
        programs = [Program(deploy(one, model), 1, steps=2)]
        fill_other_devices(one, 2, model=model)
        programs.append(Program(deploy(two, model), 2, steps=2))
        turns = [program.operations() for program in programs]
        for number in range(6):
            saved = programs[0].deployment.save.submit(place / f"{number}")
            if is_disturbed and number == 1:
                kill(cluster, programs[1].deployment)
            elif is_disturbed and number == 4:
                kill_all_forked(cluster)
            for turn in turns:
                next(turn)
            saved.result()
        return [(program.metrics, program.deployment.digest()) for program in programs]


def test_jobs_that_take_turns_on_a_device_lose_their_ranks_and_zygotes(
    cluster: LiveCluster, tiny_model: Path, tmp_path: Path
) -> None:
    expected = take_turns(cluster, tiny_model, tmp_path / "calm", is_disturbed=False)
    assert take_turns(cluster, tiny_model, tmp_path / "not", is_disturbed=True) == expected

"""Hosts of a Ray cluster, each with a network of its own: what befalls jobs that span them.

`make chaos` alone runs it: hosts and what runs on them fail in turn under jobs, and what became of
each job is printed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import plexclient as plex
from tests.rigs.durable_jobs import Training, start, stepping
from tests.rigs.network_hosts import network_hosts
from tests.rigs.on_ray import OnHosts, start_on_hosts
from tests.rigs.processes import began_s, descendants, is_alive
from tests.rigs.waiting import wait_until

IS_CAMPAIGN: Final = "PLEX_CHAOS_FAULTS" in os.environ  # noqa: TID251 - of `make chaos`

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IS_CAMPAIGN, reason="`make chaos` runs it"),
]

NAMES: Final = ("head", "one", "two", "three", "four", "five")
FAULTS: Final = 8


@contextmanager
def started(place: Path, names: Sequence[str], **pools: str) -> Iterator[OnHosts]:
    """Start a cluster over hosts; those with a pool have a node."""
    with network_hosts(len(names)) as hosts, start_on_hosts(place, hosts, names) as cluster:
        for name, pool in pools.items():
            cluster.ray.add(name, pool=pool)
            cluster.wait_for(name, "up")
        yield cluster


def undisturbed(
    cluster: OnHosts, model: Path, *, seeds: Sequence[int], steps: int, samples: bool
) -> Any:
    """Return what the steps come to where nothing happens."""
    with ExitStack() as stack:
        connection = stack.enter_context(cluster.service.live.connect())
        trainings = [
            start(
                stack.enter_context(connection.job(f"calm-{seed}")),
                model,
                seed=seed,
                durability="none",
                pp=2,
                samples=samples,
            )
            for seed in seeds
        ]
        for _ in range(steps):
            with stepping(*trainings):
                pass
        return [training.outcome() for training in trainings]


@dataclass(slots=True)
class Jobs:
    """Two jobs, and what has befallen their hosts."""

    cluster: OnHosts
    trainings: tuple[Training, ...]
    calm: Sequence[Any]
    """What they come to where nothing happens."""
    seen: list[str] = field(default_factory=list)
    """What was found of the fault that happens, beside its jobs."""

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        """Have a step of both under way while something happens; print what became of each.

        That is a row of the fault matrix.
        """
        before = [self.homes(one) for one in self.trainings]
        self.seen.clear()
        with stepping(*self.trainings):
            since_s = time.monotonic()
            yield
        became = []
        for training, was in zip(self.trainings, before, strict=True):
            now, took_s = self.homes(training), training.answered_s - since_s
            where = "+".join(was) if was == now else f"{'+'.join(was)} → {'+'.join(now)}"
            became.append(f"{where}, {took_s:.0f} s")
        for training, (metrics, tokens, _) in zip(self.trainings, self.calm, strict=True):
            assert training.metrics == metrics[: len(training.metrics)]
            assert training.tokens == tokens[: len(training.tokens)]
        row = " | ".join([what, *became, "; ".join([*self.seen, "same bits"])])
        print(f"| {row} |", flush=True)  # noqa: T201 - what `make chaos` is for

    def within(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait for something, and note in how many seconds it came."""
        self.took(what, lambda: wait_until(is_so, what=what, timeout_s=90))

    def took(self, what: str, do: Callable[[], None]) -> None:
        """Note how long something takes."""
        since_s = time.monotonic()
        do()
        self.seen.append(f"{what} in {time.monotonic() - since_s:.1f} s")

    def all_gone(self, processes: Sequence[int]) -> None:
        """Wait until none of these processes is alive, and note how long that took."""
        self.within("no process of the node", lambda: not any(map(is_alive, processes)))

    def homes(self, training: Training) -> list[str]:
        """Return the nodes where a job trains."""
        actor = training.actor.deployment_id
        return sorted(
            node.node_id
            for node in self.cluster.service.live.nodes()
            if actor in {one.deployment_id for one in node.residents}
        )

    def victim(self) -> str:
        """Return a host where the first trains, once both can do without it."""
        for one in self.trainings:
            self.cluster.service.wait_for_copies(one.job)
        return self.homes(self.trainings[0])[-1]

    def ranks(self) -> set[int]:
        """Return the processes of all hosts that hold parts of models."""
        return {
            pid for name in self.cluster.service.names for pid in self.cluster.service.ranks(name)
        }


def test_two_jobs_outlive_each_fault_of_ray_and_of_its_hosts(
    tmp_path: Path, tiny_model: Path
) -> None:
    pools = {"one": "train", "two": "train", "three": "train", "four": "sample"}
    with started(tmp_path, NAMES, **pools) as cluster:
        live = cluster.service.live
        calm = undisturbed(cluster, tiny_model, seeds=(1, 2), steps=FAULTS, samples=True)
        options = plex.ClientOptions(retry_for_s=120)
        with (
            plex.connect(live.address, token=live.token, options=options) as connection,
            connection.job("left", session_ttl_s=300) as left,
            connection.job("right", session_ttl_s=300) as right,
        ):
            trainings = tuple(
                start(job, tiny_model, seed=seed, durability="step", pp=2, samples=True)
                for seed, job in enumerate((left, right), start=1)
            )
            jobs = Jobs(cluster, trainings, calm)
            kill_processes(jobs)
            lose_hosts(jobs)
            restart_head(jobs)
            assert [one.outcome() for one in trainings] == calm


def lose_hosts(jobs: Jobs) -> None:
    """Have a host fall silent, one more come, another one leave, and the raylet of one die."""
    cluster = jobs.cluster
    name = jobs.victim()
    isolate(jobs, name)
    cluster.service.host(name).mend()
    cluster.wait_for(name, "up")

    with jobs.fault("host added"):  # who leaves moves to devices none of which it has
        cluster.ray.add("five", pool="train")
        jobs.within("up", lambda: cluster.nodes().get("five") == "up")
    name = jobs.victim()
    with jobs.fault("told to leave"):
        cluster.ray.notify(name)
        jobs.within("cordoned", lambda: cluster.nodes()[name] != "up")
    cluster.wait_for(name, "drained")  # its deployments move at a step boundary
    cluster.ray.kill(name)
    cluster.wait_for(name, None)

    name = jobs.victim()
    with jobs.fault("raylet killed"):
        kill_raylet(jobs, name)
    cluster.wait_for(name, None)


def kill_processes(jobs: Jobs) -> None:
    """Kill what stands between the service and its ranks, and what holds an agent."""
    cluster = jobs.cluster
    with jobs.fault("reconciler killed"):
        os.kill(cluster.keeper, signal.SIGKILL)
    for what in ("agent", "NodeHost"):
        name = jobs.victim()
        agent = cluster.agent(name)
        below = [agent, *descendants(agent)]
        with jobs.fault(f"{what} killed"):
            os.kill(agent if what == "agent" else cluster.host(name), signal.SIGKILL)
            jobs.all_gone(below)
        cluster.wait_for_other_agent(name, agent)


def restart_head(jobs: Jobs) -> None:
    """Kill Ray's head, and start it again; all that it knew stays as it is."""
    cluster = jobs.cluster
    agents = {name: cluster.agent(name) for name in cluster.nodes()}
    ranks = jobs.ranks()
    with jobs.fault("Ray's head killed and started"):
        jobs.took("it runs", cluster.ray.restart_head)
        jobs.within("its nodes are all there", lambda: set(cluster.nodes().values()) == {"up"})
    assert {name: cluster.agent(name) for name in agents} == agents
    assert jobs.ranks() >= ranks


def kill_raylet(jobs: Jobs, name: str) -> None:
    """Kill it; return when nothing of plexsvc is alive on its host."""
    agent = jobs.cluster.agent(name)
    below = [agent, *descendants(agent)]
    os.kill(jobs.cluster.ray.raylet(name), signal.SIGKILL)
    jobs.all_gone(below)
    jobs.cluster.ray.kill(name)


def isolate(jobs: Jobs, name: str) -> None:
    """Cut a host off; nothing goes on elsewhere before its ranks are dead."""
    before, alive_s = jobs.ranks(), 0.0

    def is_lost() -> bool:
        nonlocal alive_s
        if jobs.cluster.service.ranks(name):
            alive_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return jobs.cluster.nodes()[name] == "lost"

    with jobs.fault("isolated"):
        jobs.cluster.service.host(name).cut()
        jobs.within("lost", is_lost)
        assert jobs.cluster.service.ranks(name) == []
    assert name not in jobs.homes(jobs.trainings[0])
    assert all(began_s(pid) >= alive_s for pid in jobs.ranks() - before)


def test_a_job_over_two_hosts_outlives_the_raylet_of_one_where_a_host_was_added(
    tmp_path: Path, tiny_model: Path
) -> None:
    with started(tmp_path, NAMES[:4], one="train", two="train") as cluster:
        calm = undisturbed(cluster, tiny_model, seeds=(1,), steps=3, samples=False)
        with cluster.service.live.connect() as connection, connection.job("wide") as job:
            training = start(job, tiny_model, seed=1, durability="step", pp=2)
            jobs = Jobs(cluster, (training,), calm)
            with jobs.fault("host added"):
                cluster.ray.add("three", pool="train")
                jobs.within("up", lambda: cluster.nodes().get("three") == "up")
            with stepping(training):
                pass
            name = jobs.victim()
            with jobs.fault("raylet killed"):
                kill_raylet(jobs, name)
            assert jobs.homes(training) == sorted({"one", "two", "three"} - {name})
            assert [training.outcome()] == calm

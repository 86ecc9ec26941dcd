"""Nodes that are killed: durable deployments go on elsewhere with the same bits, moves end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from plexsvc.cluster import embedded
from plexsvc.ids import NodeId
from plexsvc.node.config import AgentConfig
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.vocabulary import RelocationStage
from plexsvc.scheduler.ledger.durable import Durable
from tests.rigs.inner_cluster import Gate, InnerCluster, node, start_inner
from tests.rigs.processes import began_s, descendants
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, fixed_batch, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow]

Outcome = tuple[list[dict[str, float]], Any]
OTHER = {"left": "right", "right": "left"}
TICK_S = 0.01
"""The kernel rounds the time at which a process began down to such a tick."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerCluster]:
    """Two nodes; leases are short so that a lost one is missed. An agent that dies comes back."""
    config = SchedulerConfig(node_lease_us=2_000_000)
    place, nodes = tmp_path_factory.mktemp("durable"), (node("left"), node("right"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "AgentConfig", partial(AgentConfig, max_restarts=100))
        with start_inner(place, nodes=nodes, scheduler=config) as found:
            yield found


@pytest.fixture
def cluster(running: InnerCluster) -> InnerCluster:
    """The cluster with both nodes, and no agent that was killed."""
    wait_until(lambda: have_answered(running, "left", "right"), what="both nodes answer")
    return running


def have_answered(cluster: InnerCluster, *nodes: str) -> bool:
    """Whether the agents that run now hold leases: within its lease one that died counts as up."""
    links = {link.node_id: link for link in cluster.driver.nodes.links if link.is_up}
    for node_id in nodes:
        link, agents = links.get(NodeId(node_id)), cluster.agents(node_id)
        renewed = link and link.renewed
        if len(agents) != 1 or renewed is None or renewed.sent_s <= began_s(agents[0]) + TICK_S:
            return False
    return True


@pytest.fixture(scope="module")
def undisturbed(running: InnerCluster, tiny_model: Path) -> Outcome:
    """What the three steps come to where nothing is killed."""
    return trained(running, tiny_model, durability="none", disturb=lambda _: None)


def deploy(
    job: plex.Job, model: Path, *, durability: str, micro_batch_tokens: int = 64
) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        micro_batch_tokens=micro_batch_tokens,
        durability=durability,
    )


def three_steps(actor: plex.Actor) -> list[Callable[[], Future[Any]]]:
    """Two passes before each: a small one travels in a message, a large one is staged."""
    passes = [fixed_batch(7), fixed_batch(8, sequences=100, longest=64)]
    calls: list[Callable[[], Future[Any]]] = [
        partial(actor.forward_backward.submit, batch, loss="ppo", return_logprobs=False)
        for batch in passes
    ]
    return [*calls, actor.step.submit] * 3


def kill_node(cluster: InnerCluster, node_id: str) -> None:
    """Kill -9 an agent, its state manager and all ranks at once."""
    (agent,) = cluster.agents(node_id)
    for pid in [agent, *descendants(agent)]:
        with suppress(ProcessLookupError):  # they die with the agent, too
            os.kill(pid, signal.SIGKILL)


def durable(cluster: InnerCluster) -> Durable:
    found = [one.durable for one in cluster.driver.registry.deployments.values()]
    assert found[-1] is not None
    return found[-1]


def home_of(cluster: InnerCluster) -> str:
    """Return the node that the newest deployment trains on."""
    newest = list(cluster.driver.registry.deployments.values())[-1]
    (node_id,) = newest.nodes
    return node_id


def trained(
    cluster: InnerCluster, model: Path, *, durability: str, disturb: Callable[[int], None]
) -> Outcome:
    """Train for three steps; `disturb` is told how many operations are under way or done."""
    with cluster.connect() as connection, connection.job("train") as job:
        actor = deploy(job, model, durability=durability)
        futures = list[Future[Any]]()
        for number, call in enumerate(three_steps(actor)):
            futures.append(call())
            disturb(number)
        return [future.result().metrics for future in futures], actor.digest()


@pytest.mark.parametrize("killed_at", [0, 4, 5], ids=["small", "staged", "step"])
def test_a_killed_node_costs_a_pause(
    cluster: InnerCluster, tiny_model: Path, undisturbed: Outcome, killed_at: int
) -> None:
    homes = list[str]()

    def disturb(number: int) -> None:
        if number == killed_at:
            homes.append(home_of(cluster))
            kill_node(cluster, homes[0])

    assert trained(cluster, tiny_model, durability="step", disturb=disturb) == undisturbed
    # The death of a rank, or an agent that came back, may be told before the lease ends.
    assert durable(cluster).pause is not None


@pytest.mark.parametrize("steps", [0, 1], ids=["runs-again", "is-behind-the-copy"])
def test_results_that_nobody_has_read_outlive_their_node(
    cluster: InnerCluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    answered, may_read, read = threading.Event(), threading.Event(), plex.Actor._shards

    async def late(actor: plex.Actor, result: Any) -> Any:
        answered.set()
        await asyncio.to_thread(may_read.wait, 120)
        return await read(actor, result)

    batch = fixed_batch(3, sequences=600, longest=64)
    with cluster.connect() as connection, connection.job("train") as job:
        actor = deploy(job, tiny_model, durability="step", micro_batch_tokens=1024)
        call = partial(actor.forward_backward.submit, batch, loss="ppo", return_logprobs=True)
        expected = call().result().logprobs
        actor.zero_grad()
        monkeypatch.setattr(plex.Actor, "_shards", late)
        future = call()
        assert answered.wait(120)
        for _ in range(steps):
            actor.step()
            wait_until(lambda: durable(cluster).second_seq == 4, what="the second copy is whole")
        kill_node(cluster, home_of(cluster))
        wait_until(lambda: durable(cluster).pause is not None, what="its node is lost")
        may_read.set()
        found = future.result(timeout=120).logprobs
        assert expected is not None
        assert found is not None
        assert np.array_equal(found, expected)


def test_the_second_copy_follows_each_step(cluster: InnerCluster, tiny_model: Path) -> None:
    with cluster.connect() as connection, connection.job("train") as job:
        actor = deploy(job, tiny_model, durability="step")
        for call in three_steps(actor)[:3]:
            call().result()
        wait_until(lambda: durable(cluster).second_seq == 3, what="the second copy is whole")
        (other,) = durable(cluster).second.nodes
        assert other != home_of(cluster)
        kill_node(cluster, other)
        for call in three_steps(actor)[:3]:
            call().result()
        assert "can be rebuilt from its state after seq" in str(durable(cluster))


def test_one_rebuilt_on_the_node_of_its_second_copy_outlives_that_too_without_a_step(
    cluster: InnerCluster, tiny_model: Path, undisturbed: Outcome
) -> None:
    """The first node comes back and copies what is on the other one; then that one is killed."""

    def disturb(number: int) -> None:
        if number != 4:
            return
        wait_until(lambda: durable(cluster).second_seq == 3, what="the second copy is whole")
        for _ in range(2):
            kill_home(cluster)
            wait_until(has_two_copies, what="there is a second copy")

    def has_two_copies() -> bool:
        return durable(cluster).second_seq == 3 and not durable(cluster).is_lost

    assert trained(cluster, tiny_model, durability="step", disturb=disturb) == undisturbed


def kill_home(cluster: InnerCluster) -> None:
    """Kill the node that a deployment is on; it comes back when the deployment is on another."""
    home = home_of(cluster)
    agent = cluster.take_power(home)
    wait_until(lambda: home_of(cluster) != home, what="it is elsewhere")
    os.kill(agent, signal.SIGKILL)


STAGES = [RelocationStage.WAITING, RelocationStage.CARRYING, RelocationStage.RESTORING]


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_new_node_that_dies_leaves_a_deployment_on_its_way_where_it_is(
    cluster: InnerCluster, tiny_model: Path, stage: RelocationStage
) -> None:
    with cluster.connect() as connection, connection.job("stays") as job:
        actor = deploy(job, tiny_model, durability="none")
        run_interleaved([Program(actor, 0, steps=1)])
        before, home = actor.digest(), home_of(cluster)
        cluster.on_stage[stage] = lambda: cluster.kill_agent(OTHER[home])
        cluster.relocate(actor, (OTHER[home], 0))
        ended = cluster.wait()
        assert ended.stage is RelocationStage.FAILED
        assert ended.fault is not None
        assert ended.fault.code in {"node_lost", "worker_died", "unavailable"}, ended
        assert cluster.places(actor) == ((home, 0),)
        assert actor.digest() == before
        run_interleaved([Program(actor, 1, steps=1)])


def test_an_old_node_that_dies_takes_a_deployment_on_its_way_with_it(
    cluster: InnerCluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect() as connection:
        with pytest.raises(plex.PlexError) as caught, connection.job("dies") as job:  # noqa: PT012 - leaving the job is part of it
            actor = deploy(job, tiny_model, durability="none")
            home, gate = home_of(cluster), Gate(cluster, monkeypatch)
            cluster.relocate(actor, (OTHER[home], 0))
            gate.wait_until_entered()
            cluster.kill_agent(home)
            assert cluster.wait().stage is RelocationStage.FAILED
            gate.open()
            run_interleaved([Program(actor, 0)])
        assert caught.value.code in {"node_lost", "worker_died", "deployment_failed"}, caught.value
    wait_until(lambda: not cluster.pids(), what="no process is left")

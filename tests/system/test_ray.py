"""A cluster whose nodes are Ray's: they come, work, are told to leave, and die with Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2
from plexsvc.rpc.keys import read_keys
from tests.rigs.live_cluster import rank_processes
from tests.rigs.on_ray import OnRay, start_on_ray
from tests.rigs.processes import descendants, is_alive, running
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPT = [3, 4, 12, 5, 16]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    with start_on_ray(tmp_path_factory.mktemp("on-ray")) as started:
        yield started


def deploy(job: plex.Job, model: Path) -> plex.Actor:
    return job.deploy(
        "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=0
    )


def cycle(actor: plex.Actor, number: int) -> None:
    actor.forward_backward(fixed_batch(number), loss="ppo")
    actor.step()


def test_a_job_trains_and_samples_on_a_ray_node(cluster: OnRay, tiny_model: Path) -> None:
    with cluster.service.live.connect() as connection, connection.job("first") as job:
        actor = deploy(job, tiny_model)
        cycle(actor, 1)
        assert {block.node_id for block in actor.info.blocks} == {"one"}
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        rollout.sync(actor)
        samples = rollout.generate([PROMPT], n=4, max_tokens=8, seed=0)
        sampled = plex.Batch.from_samples(samples, advantages=np.zeros(4))
        gap = np.abs(actor.forward(sampled).logprobs - sampled.logprobs)[sampled.mask > 0]
        assert gap.max() <= 1e-3


def test_a_job_outlives_who_speaks_with_ray_then_rays_head_then_the_service(
    cluster: OnRay, tiny_model: Path
) -> None:
    service, ray = cluster.service, cluster.ray
    batch = fixed_batch(9)
    with service.live.connect() as connection, connection.job("undisturbed") as job:
        actor = deploy(job, tiny_model)
        for number in range(4):
            cycle(actor, number)
        expected = actor.forward(batch).logprobs
    agent = cluster.agent("one")
    options = plex.ClientOptions(retry_for_s=90)
    address, token = service.live.address, service.live.token
    with (
        plex.connect(address, token=token, options=options) as connection,
        connection.job("disturbed", session_ttl_s=120) as job,
    ):
        actor = deploy(job, tiny_model)
        cycle(actor, 0)
        ranks = rank_processes(service.live, [actor.deployment_id])
        os.kill(cluster.keeper, signal.SIGKILL)
        cycle(actor, 1)
        ray.restart_head()
        cycle(actor, 2)
        service.kill()
        service.start()
        cycle(actor, 3)
        assert actor.forward(batch).logprobs.tobytes() == expected.tobytes()
        assert rank_processes(service.live, [actor.deployment_id]) == ranks
    assert cluster.agent("one") == agent


def test_a_node_comes_in_mid_run_is_drained_when_told_to_leave_and_may_come_again(
    cluster: OnRay, tiny_model: Path
) -> None:
    with cluster.service.live.connect() as connection, connection.job("moves") as job:
        cluster.ray.add("two", pool="train")
        cluster.wait_for("two", "up")
        actor = deploy(job, tiny_model)
        cycle(actor, 1)
        cluster.service.live._call(
            "MoveJob", service_pb2.MoveJobRequest(job_id=job.job_id, node_id="two")
        )
        wait_until(lambda: trained_on(cluster, actor) == {"two"}, what="it moved")
        cluster.ray.notify("two")
        wait_until(lambda: trained_on(cluster, actor) == {"one"}, what="it moved back")
        cluster.wait_for("two", "drained")
    cluster.ray.kill("two")
    cluster.wait_for("two", None)
    cluster.ray.add("two", pool="train", is_light=True)
    cluster.wait_for("two", "up")


def trained_on(cluster: OnRay, actor: plex.Actor) -> set[str]:
    """Return where the only deployment lives after one more step."""
    cycle(actor, 2)
    return cluster.homes()


@pytest.mark.parametrize("victim", ["host", "raylet"])
def test_with_what_ray_runs_on_a_node_everything_there_dies(cluster: OnRay, victim: str) -> None:
    name = f"dies-with-{victim}"
    cluster.ray.add(name, pool="train", is_light=True)
    cluster.wait_for(name, "up")
    agent = cluster.agent(name)
    below = [agent, *descendants(agent)]
    assert len(below) > 1
    os.kill(cluster.host(name) if victim == "host" else cluster.ray.raylet(name), signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="nothing there is alive")
    if victim == "host":
        cluster.wait_for_other_agent(name, agent)
    cluster.ray.kill(name)
    cluster.wait_for(name, None)


def test_a_node_of_no_pool_or_with_a_name_that_is_taken_gets_no_agent(cluster: OnRay) -> None:
    cluster.ray.add("odd", pool="none")
    cluster.ray.add("twin", name="one", pool="train")
    wait_until(lambda: "none of ray.pools" in cluster.log.read_text(), what="the pool is refused")
    wait_until(lambda: "has its name, too" in cluster.log.read_text(), what="the name is refused")
    assert cluster.nodes()["one"] == "up"
    cluster.wait_for("odd", "absent")
    for node in ("odd", "twin"):
        assert not running("plexsvc.node.agent", below=cluster.ray.raylet(node))
        cluster.ray.kill(node)


def test_a_node_that_is_shut_out_does_not_come_back_with_another_agent_or_key(
    cluster: OnRay,
) -> None:
    cluster.ray.add("out", pool="train", is_light=True)
    cluster.wait_for("out", "up")
    place = cluster.ray.nodes_directory / "out"
    assert (place / "key.pem").exists()
    assert read_keys(place / "keys.json").secret != cluster.service.live.keys.secret
    cluster.service.live._call("ShutOutNode", service_pb2.ShutOutNodeRequest(node_id="out"))
    cluster.wait_for("out", None)
    for has_new_key in (False, True):
        agent = cluster.agent("out")
        if has_new_key:
            (place / "key.pem").unlink()
        os.kill(cluster.host("out"), signal.SIGKILL)
        wait_until(lambda: not is_alive(agent), what="its agent died")  # noqa: B023
        if not has_new_key:
            wait_until(lambda: cluster.agent("out") != 0, what="it has another agent")
        else:
            wait_until((place / "key.pem").exists, what="it asks again")
        assert cluster.nodes().get("out") in {None, "absent"}
    assert cluster.agent("out") == 0
    cluster.ray.kill("out")

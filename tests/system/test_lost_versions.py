"""The node that alone has the weights which an instance samples from is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import plexclient as plex
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.durable import Durable
from tests.rigs.inner_cluster import InnerCluster, node
from tests.rigs.long_answers import make_long_model, start_with_fake_engines
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

HELD, PROMPTS = [[3]], [[3, 4]]
"""An engine holds the first until it gets the other."""
OPTIONS = plex.SamplingOptions(n=16, max_tokens=14_000, temperature=1.0, seed=3, ignore_eos=True)
BOTH, SPARE = "both", "spare"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerCluster]:
    """A node that trains and samples, and one that only trains. An agent that dies comes back."""
    config = SchedulerConfig(node_lease_us=2_000_000)
    nodes = (node(BOTH, rollout=1), node(SPARE))
    place = tmp_path_factory.mktemp("versions")
    with start_with_fake_engines(place, nodes=nodes, scheduler=config) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_long_model(tmp_path_factory.mktemp("model"))


def trained(
    cluster: InnerCluster, job: plex.Job, model: Path, *, durability: str, name: str = "actor"
) -> plex.Actor:
    """Return what has made a step on the node that samples, too."""
    actor = job.deploy(
        name,
        role="actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        micro_batch_tokens=64,
        durability=durability,
    )
    if cluster.places(actor) != ((BOTH, 0),):
        cluster.relocate(actor, (BOTH, 0))
        cluster.wait()
    actor.forward_backward(fixed_batch(1), loss="ppo")
    actor.step()
    return actor


def durable_of(cluster: InnerCluster, actor: plex.Actor) -> Durable:
    found = cluster.driver.registry.deployments[DeploymentId(actor.deployment_id)].durable
    assert found is not None
    return found


def sampling(job: plex.Job, actor: plex.Actor) -> tuple[plex.Rollout, int]:
    """Return what samples the actor's weights, and their version."""
    rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=15_000)
    return rollout, rollout.sync(actor)


def test_a_generate_goes_on_once_its_weights_are_there_again(
    cluster: InnerCluster, model: Path
) -> None:
    with cluster.connect() as connection, connection.job("rebuilt") as job:
        actor = trained(cluster, job, model, durability="step")
        rollout, version = sampling(job, actor)
        (held,) = (
            one.durable for one in cluster.driver.registry.deployments.values() if one.durable
        )
        wait_until(lambda: held.second_seq == held.seq, what="there is a second copy")
        under_way = rollout.generate.submit(HELD, **OPTIONS)
        cluster.kill_agent(BOTH)
        samples = [*rollout.generate(PROMPTS, **OPTIONS), *under_way.result(120)]
        assert [len(one.tokens) for one in samples] == [14_000] * 32
        assert {one for sample in samples for one in sample.versions} == {version}
        assert held.pause is not None


def test_a_generate_whose_weights_nobody_has_any_more_ends_until_the_next_sync(
    cluster: InnerCluster, model: Path
) -> None:
    """The actor was not durable, so no other node has its state."""
    with cluster.connect() as connection, connection.job("gone") as job:
        actor = trained(cluster, job, model, durability="none")
        rollout, _ = sampling(job, actor)
        under_way = rollout.generate.submit(HELD, **OPTIONS)
        cluster.kill_agent(BOTH)
        with pytest.raises(plex.PlexError, match="is lost with its node") as caught:
            under_way.result(120)
        assert caught.value.code == "not_found"
        other = trained(cluster, job, model, durability="none", name="other")
        assert rollout.sync(other) > 0
        samples = rollout.generate(PROMPTS, **OPTIONS)
        assert [len(one.tokens) for one in samples] == [14_000] * 16

"""The catalogue of published versions: handed out again, found by any of their numbers, kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plexclient.wire.v1 import (
    operations_pb2,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.planning.memory import Use
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.orders.versions import Versions
from tests.rigs.scheduler_rig import Rig, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
ACTOR = DeploymentId("job/actor")


def published(number: int, *, incarnation: int = 1) -> Published:
    return Published(version=VersionId(ACTOR, incarnation, number), nodes=(NodeId("n0"),))


def numbers(gone: list[Published]) -> list[int]:
    return [one.version.version for one in gone]


def test_a_state_that_has_not_changed_is_handed_out_again_under_both_numbers() -> None:
    versions = Versions(keep=1)
    versions.add(published(3))
    assert versions.hand_out(ACTOR, incarnation=1, number=5) == published(3)
    assert versions.find(ACTOR, 5) == versions.find(ACTOR, 3) == published(3)
    versions.changed(ACTOR)
    assert versions.hand_out(ACTOR, incarnation=1, number=7) is None
    with pytest.raises(PlexError, match="version 7 of job/actor is not published") as caught:
        versions.find(ACTOR, 7)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_another_incarnation_has_a_state_of_its_own() -> None:
    versions = Versions(keep=1)
    versions.add(published(3))
    assert versions.hand_out(ACTOR, incarnation=2, number=1) is None


def test_what_is_used_stays_beyond_the_newest_and_beyond_its_deployment() -> None:
    versions = Versions(keep=1)
    for number in (1, 2, 3):
        versions.add(published(number))
    first = published(1).version
    assert numbers(versions.surplus(used={first})) == [2]
    versions.forget(ACTOR)
    assert numbers(versions.surplus(used={first})) == [3]
    assert numbers(versions.surplus(used=set())) == [1]


async def test_weights_flow_from_publish_to_pull_and_old_versions_go(tmp_path: Path) -> None:
    config = SchedulerConfig(max_versions_per_deployment=2)
    nodes = [{"train": 1, "rollout": 1}]
    async with start_rig(tmp_path, nodes=nodes, config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await rig.deploy("job-1", "rollout", role="rollout")
        for _ in range(3):
            await rig.run("job-1", "step")
            publish = rig.operation("job-1", "publish")
            pull = rig.operation("job-1", "pull", name="rollout", after=(publish.operation_id,))
            pull.pull.source_deployment_id = "job-1/actor"
            pull.pull.version = publish.seq
            pulled, published = await asyncio.gather(
                rig.scheduler.submit(pull), rig.scheduler.submit(publish)
            )
            assert (pulled.state, published.weight_version) == (ANSWERED, publish.seq)
        assert rig.behaviour.versions == [2, 4, 6]
        assert rig.behaviour.released == [("job-1/actor", 2)]
        memory = rig.driver.cluster.planners["train"].board.memory
        (unit_id,) = rig.driver.cluster.planners["train"].board.rooms
        assert memory.uses_at(unit_id)[Use.VERSIONS] == 3 * 5, "two are kept, one may come"
        gone = rig.operation("job-1", "pull", name="rollout")
        gone.pull.source_deployment_id, gone.pull.version = "job-1/actor", 2
        result = await rig.scheduler.submit(gone)
        assert result.error.code == ErrorCode.NOT_FOUND
        await rig.end("job-1")
        assert rig.rollout.forgotten == ["job-1/rollout"]
        assert len(rig.behaviour.released) == 3
        assert Use.VERSIONS not in memory.uses_at(unit_id)


async def sync(rig: Rig, target: str, source: str = "actor") -> int:
    """Publish and pull; return the version that the target was given."""
    publish = rig.operation("job-1", "publish", name=source)
    pull = rig.operation("job-1", "pull", name=target, after=(publish.operation_id,))
    pull.pull.source_deployment_id = f"job-1/{source}"
    pull.pull.version = publish.seq
    pulled, published = await asyncio.gather(
        rig.scheduler.submit(pull), rig.scheduler.submit(publish)
    )
    assert (pulled.state, published.state) == (ANSWERED, ANSWERED)
    assert rig.behaviour.versions[-1] == published.weight_version
    return int(published.weight_version)


async def test_one_state_is_published_once_whoever_takes_it(rig: Rig) -> None:
    await rig.job("job-1")
    for name, role in (("actor", "actor"), ("ref", "reference"), ("rollout", "rollout")):
        await rig.deploy("job-1", name, role=role)
    assert [await sync(rig, to) for to in ("rollout", "ref", "rollout")] == [1, 1, 1]
    await rig.run("job-1", "forward_backward")
    assert await sync(rig, "rollout") == 1
    await rig.run("job-1", "step")
    assert [await sync(rig, to) for to in ("ref", "rollout")] == [7, 7]
    await rig.run("job-1", "load")
    assert await sync(rig, "rollout") == 10


async def test_a_version_is_kept_while_it_is_served_and_goes_with_its_last_user(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(max_versions_per_deployment=1)
    nodes = [{"train": 2, "rollout": 1}]
    async with start_rig(tmp_path, nodes=nodes, config=config) as rig:
        await rig.job("job-1")
        for name, role in (("actor", "actor"), ("ref", "reference"), ("rollout", "rollout")):
            await rig.deploy("job-1", name, role=role)
        await sync(rig, "rollout")
        for _ in range(2):
            await rig.run("job-1", "step")
            await sync(rig, "ref")
        assert rig.behaviour.released == [("job-1/actor", 3)]
        await sync(rig, "rollout")
        assert rig.behaviour.released == [("job-1/actor", 3), ("job-1/actor", 1)]


def test_another_scheduler_finds_the_versions_but_takes_none_for_the_state_of_now() -> None:
    before, after = Versions(keep=2), Versions(keep=2)
    published = Published(
        version=VersionId("job/actor", 1, 4), nodes=(NodeId("n"),), nbytes=(7,), parts=("p",)
    )
    before.add(published)
    before.hand_out(DeploymentId("job/actor"), incarnation=1, number=6)
    after.restore(DeploymentId("job/actor"), before.kept(DeploymentId("job/actor")))
    assert after.find(DeploymentId("job/actor"), 4) == published
    assert after.find(DeploymentId("job/actor"), 6) == published
    assert after.hand_out(DeploymentId("job/actor"), incarnation=1, number=8) is None
    after.restore(DeploymentId("job/critic"), b"")
    with pytest.raises(PlexError, match="known: none"):
        after.find(DeploymentId("job/critic"), 1)


@pytest.mark.parametrize("second_seq", [0, 4, None])
def test_the_next_scheduler_knows_which_copies_a_durable_deployment_has(
    second_seq: int | None,
) -> None:
    def copy(seq: int, node_id: str) -> Published:
        version = VersionId(ACTOR, 1, seq)
        return Published(version=version, nodes=(NodeId(node_id),), nbytes=(7,))

    second = copy(second_seq, "m") if second_seq else None
    before = Durable(copy=copy(5, "n"), seq=5, second=second, second_seq=second_seq)
    versions, after = Versions(keep=2), Durable()
    versions.copied(ACTOR, before)
    later = Versions(keep=2)
    later.restore(ACTOR, versions.kept(ACTOR))
    later.recall(ACTOR, after)
    assert (after.copy, after.seq) == (before.copy, 5)
    assert (after.second, after.second_seq) == (second, second_seq)

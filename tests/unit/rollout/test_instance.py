"""An instance: which weights it serves, and under which name."""

from __future__ import annotations

from typing import cast

import xxhash

from plexclient.wire.v1 import common_pb2, rollout_pb2, statemanager_pb2
from plexsvc.ids import VersionId
from plexsvc.rollout.instance import Context
from tests.fakes.fake_instances import FakeInstance, publish, start_instance

HERE = cast("Context", None)
FENCE = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)


async def load(
    instance: FakeInstance, published: statemanager_pb2.PublishedVersion
) -> rollout_pb2.LoadVersionReply:
    request = rollout_pb2.LoadVersionRequest(fence=FENCE, published=published)
    return await instance.servicer.LoadVersion(request, HERE)


def checksum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(data))


async def test_the_same_number_of_another_deployment_is_loaded_and_named() -> None:
    instance = await start_instance()
    await load(instance, publish(1, source="job/a", data=b"weights of a"))
    reply = await load(instance, publish(1, source="job/b", data=b"weights of b"))
    stats = await instance.servicer.Stats(rollout_pb2.InstanceStatsRequest(), HERE)
    await instance.kill()
    assert reply.nbytes > 0
    assert VersionId.of(reply.version) == VersionId("job/b", 1, 1)
    assert VersionId.of(stats.version) == VersionId("job/b", 1, 1)
    assert reply.checksum == stats.checksum == checksum(b"weights of b")


async def test_the_same_number_of_another_incarnation_is_loaded() -> None:
    instance = await start_instance()
    first = publish(1, data=b"first")
    await load(instance, first)
    again = publish(1, data=b"again", incarnation=2)
    reply = await load(instance, again)
    await instance.kill()
    assert reply.checksum == checksum(b"again")


async def test_the_version_in_use_is_answered_at_once_with_its_checksum() -> None:
    instance = await start_instance()
    published = publish(1)
    loaded = await load(instance, published)
    again = await load(instance, published)
    await instance.kill()
    assert (again.nbytes, again.checksum) == (0, loaded.checksum)

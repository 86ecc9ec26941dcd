"""Tokens that operators make: kept by the hash of their secret, told to routers that watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.api import tokens
from plexsvc.scheduler.api.servicer import SchedulerServicer
from tests.rigs.scheduler_rig import Rig, start_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        yield rig


async def create(rig: Rig, *, lifetime_us: int = 0) -> pb.CreateTokenReply:
    request = pb.CreateTokenRequest(owner="lab", scope="read", name="ada", lifetime_us=lifetime_us)
    return await rig.scheduler.call("CreateToken", request, pb.CreateTokenReply)


async def revoke(rig: Rig, token_id: str) -> pb.TokenView:
    request = pb.RevokeTokenRequest(token_id=token_id)
    return await rig.scheduler.call("RevokeToken", request, pb.TokenView)


async def watch(scheduler: SchedulerServicer, revision: int = 0) -> pb.WatchTokensReply:
    request = pb.WatchTokensRequest(revision=revision)
    return await scheduler.call("WatchTokens", request, pb.WatchTokensReply)


async def listed(rig: Rig) -> list[pb.TokenView]:
    reply = await rig.scheduler.call("ListTokens", pb.ListTokensRequest(), pb.ListTokensReply)
    return list(reply.tokens)


async def test_the_store_and_routers_have_the_hash_of_a_secret_that_is_told_once(rig: Rig) -> None:
    made = await create(rig, lifetime_us=5)
    (row,) = rig.store.tokens()
    assert row.hash == sha256(made.secret.encode()).digest()
    assert (row.tenant, row.scope, row.name) == ("lab", "read", "ada")
    assert row.expires_us == row.created_us + 5
    assert made.secret.partition(".")[2] not in str(row)
    assert await listed(rig) == [made.token]
    assert not made.token.hash
    assert [view.hash for view in (await watch(rig.scheduler)).tokens] == [row.hash]


async def test_a_router_that_watches_is_told_of_a_change_and_another_scheduler_knows_it(
    rig: Rig,
) -> None:
    made = await create(rig)
    before = await watch(rig.scheduler)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(rig.scheduler, before.revision))
        await asyncio.sleep(0)
        assert not watching.done()
        revoked = await revoke(rig, made.token.token_id)
        told = await watching
    assert told.revision > before.revision
    assert [view.revoked_us for view in told.tokens] == [revoked.revoked_us]
    assert revoked.revoked_us
    assert await revoke(rig, made.token.token_id) == revoked
    after = await watch(SchedulerServicer(rig.driver))
    assert after.tokens == told.tokens


async def test_no_token_is_made_beyond_the_bound_nor_an_unknown_one_revoked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    monkeypatch.setattr(tokens, "MAX_ENDED", 1)
    made = [(await create(rig)).token.token_id for _ in range(2)]
    with pytest.raises(PlexError, match="2 let in already") as full:
        await create(rig)
    assert full.value.code is ErrorCode.QUEUE_FULL
    with pytest.raises(PlexError, match="no token 'tok-0'") as unknown:
        await revoke(rig, "tok-0")
    assert unknown.value.code is ErrorCode.NOT_FOUND
    for token_id in made:
        await revoke(rig, token_id)
    assert [view.token_id for view in await listed(rig)] == made[-1:]
    await create(rig)


async def test_a_scheduler_that_stops_answers_routers_that_watch(rig: Rig) -> None:
    before = await watch(rig.scheduler)
    asyncio.get_running_loop().call_soon(rig.scheduler.stop)
    with pytest.raises(PlexError) as caught:
        await watch(rig.scheduler, before.revision)
    assert caught.value.code is ErrorCode.UNAVAILABLE

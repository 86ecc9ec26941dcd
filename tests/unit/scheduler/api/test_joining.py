"""Nodes that join with a token, and that are shut out, through a live scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import certificates
from plexsvc.scheduler.config import SchedulerConfig
from tests.rigs.keys import KEYS
from tests.rigs.scheduler_rig import Rig, start_rig, until

HOUR_US = 3_600_000_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        yield rig


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[Rig]:
    """One whose leases are over soon."""
    config = SchedulerConfig(node_lease_us=900_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        yield rig


async def token(rig: Rig, *, name: str = "") -> pb.CreateTokenReply:
    request = pb.CreateTokenRequest(scope="join", name=name, lifetime_us=HOUR_US)
    return await rig.scheduler.call("CreateToken", request, pb.CreateTokenReply)


async def join(rig: Rig, token_id: str, request: str, agent: str = "") -> pb.JoinNodeReply:
    asked = pb.JoinNodeRequest(token_id=token_id, request=request, agent=agent)
    return await rig.scheduler.call("JoinNode", asked, pb.JoinNodeReply)


def request_of(node_id: str) -> str:
    return certificates.request_for(certificates.new_key(), node_id=node_id)


async def test_a_node_gets_its_certificate_and_is_taken_in_once_it_serves(rig: Rig) -> None:
    made, request = await token(rig), request_of("node-9")
    assert made.secret.endswith(f".{KEYS.digest}")
    reply = await join(rig, made.token.token_id, request)
    assert certificates.read(reply.certificate).node_id == "node-9"
    assert reply.authority == KEYS.certificate
    assert len(rig.driver.nodes.links) == 1
    agent = rig.new_agent("node-9", train=1)
    where = await agent.start()
    for _ in range(2):
        again = await join(rig, made.token.token_id, request, where)
        assert (again.certificate, again.wall_us >= reply.wall_us) == (reply.certificate, True)
    assert [link.node_id for link in rig.driver.nodes.links] == ["node-0", "node-9"]
    listed = await rig.scheduler.call("ListTokens", pb.ListTokensRequest(), pb.ListTokensReply)
    assert [view.used_by for view in listed.tokens] == ["node-9"]


async def test_another_host_with_the_name_of_a_node_that_is_up_gets_no_certificate(
    rig: Rig,
) -> None:
    made, request = await token(rig), request_of("node-9")
    agent = rig.new_agent("node-9", train=1)
    given = await join(rig, made.token.token_id, request, await agent.start())
    for name in ("node-9", "node-0"):  # node-0 is of the service's own host
        twin = await token(rig)
        with pytest.raises(PlexError, match=f"another host is node '{name}'") as refused:
            await join(rig, twin.token.token_id, request_of(name))
        assert refused.value.code is ErrorCode.BAD_REQUEST
    assert len(rig.store.members()) == 1
    again = await join(rig, made.token.token_id, request)
    assert again.certificate == given.certificate


async def test_a_token_that_is_no_nodes_or_was_revoked_lets_in_nobody(rig: Rig) -> None:
    asked = pb.CreateTokenRequest(owner="lab", scope="submit")
    tenants = await rig.scheduler.call("CreateToken", asked, pb.CreateTokenReply)
    revoked = await token(rig)
    gone = pb.RevokeTokenRequest(token_id=revoked.token.token_id)
    await rig.scheduler.call("RevokeToken", gone, pb.TokenView)
    for token_id in ("", "tok-none", tenants.token.token_id, revoked.token.token_id):
        with pytest.raises(PlexError) as refused:
            await join(rig, token_id, request_of("n"))
        assert refused.value.code is ErrorCode.UNAUTHENTICATED, token_id
    assert rig.store.members() == []


async def test_a_node_that_is_shut_out_has_no_lease_and_is_forgotten(short: Rig) -> None:
    rig = short
    made, request = await token(rig), request_of("node-9")
    agent = rig.new_agent("node-9", train=1)
    await join(rig, made.token.token_id, request, await agent.start())
    link = next(link for link in rig.driver.nodes.links if link.node_id == "node-9")
    asked = pb.ShutOutNodeRequest(is_operator=True, node_id="node-9")
    out = await rig.scheduler.call("ShutOutNode", asked, pb.ShutOutNodeReply)
    assert await rig.scheduler.call("ShutOutNode", asked, pb.ShutOutNodeReply) == out
    assert [row.serial for row in rig.store.members()] == list(out.serials)
    is_up = rig.driver.nodes.is_up(link.node_id)
    assert "node-9" in rig.driver.cluster.cordoned or not is_up, "until its lease is over"
    await until(lambda: link not in rig.driver.nodes.links)
    await until(lambda: rig.store.nodes() == [])
    await until(lambda: not rig.driver.cluster.cordoned)
    with pytest.raises(PlexError) as refused:
        await join(rig, made.token.token_id, request, "127.0.0.1:1")
    assert refused.value.code is ErrorCode.FORBIDDEN

"""Renewals of a node's lease tell which certificates are refused, on a full disk too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.node.servicer import NodeServicer
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import SHUT_OUT, ClusterKeys, read_keys, read_shut_out
from tests.fakes.fake_clock import FakeClock
from tests.rigs.keys import member, signed

NONE: Any = None


class FakeNode:
    """A node's lease, its table of three ranks and its state manager."""

    max_epoch = 7
    restarts = 2

    def renew(self, **renewal: object) -> None: ...

    def living(self) -> list[Any]:
        settled, unsettled = asyncio.Event(), asyncio.Event()
        settled.set()
        return [SimpleNamespace(settled=one) for one in (settled, settled, unsettled)]


def servicer(keys: ClusterKeys | None) -> NodeServicer:
    node: Any = FakeNode()
    return NodeServicer(
        NONE,
        clock=FakeClock(),
        table=node,
        lease=node,
        events=NONE,
        sidecar=node,
        keys=keys,
    )


async def renewed(node: NodeServicer, *serials: str) -> node_pb2.RenewReply:
    return await node.renew(node_pb2.RenewRequest(scheduler_epoch=7, shut_out=serials))


async def test_what_the_last_renewal_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SHUT_OUT
    node = servicer(replace(member("n1"), file=tmp_path / "keys.json"))
    for serials in (("ab",), ("ab", "cd"), ("cd",), ()):
        await renewed(node, *serials)
        assert read_shut_out(path) == set(serials)


async def test_a_renewal_is_answered_with_what_runs() -> None:
    reply = await renewed(servicer(None))
    assert dict(reply.processes) == {"ready": 2, "starting": 1}
    assert reply.state_manager_restarts == 2


async def test_a_node_of_the_services_own_host_leaves_the_services_file_alone() -> None:
    assert not (await renewed(servicer(None), "ab")).HasField("error")


async def test_a_disk_that_takes_nothing_costs_no_lease_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / SHUT_OUT
    node = servicer(replace(member("n1"), file=tmp_path / "keys.json"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("plexsvc.node.servicer.write_shut_out", full)
        assert not (await renewed(node, "ab")).HasField("error")
    await renewed(node, "ab")
    assert read_shut_out(path) == {"ab"}


async def test_a_certificate_is_taken_for_its_own_key_alone(tmp_path: Path) -> None:
    keys = replace(member("n1"), file=tmp_path / "keys.json")
    node = servicer(keys)
    first = certificates.read(keys.certificate).serial
    assert (await renewed(node)).serial == first
    request = certificates.request_for(keys.private_key, node_id="n1")
    for fresh in (signed(request), member("n1").certificate, signed(request)):
        is_mine = certificates.is_of(fresh, keys.private_key)
        reply = await node.renew(node_pb2.RenewRequest(scheduler_epoch=7, certificate=fresh))
        assert (reply.serial == certificates.read(fresh).serial) is is_mine
        kept = read_keys(tmp_path / "keys.json")
        assert (kept.certificate == fresh, kept.private_key) == (is_mine, keys.private_key)
    assert (await renewed(servicer(None))).serial == ""

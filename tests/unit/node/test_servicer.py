"""Renewals of a node's lease tell which certificates are refused, on a full disk too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.node.servicer import NodeServicer
from plexsvc.rpc.keys import SHUT_OUT, read_shut_out
from tests.fakes.fake_clock import FakeClock

NONE: Any = None


class FakeLease:
    """Is renewed by newer epochs alone."""

    max_epoch = 7

    def renew(self, **renewal: object) -> None: ...


def servicer(shut_out: Path | None) -> NodeServicer:
    lease: Any = FakeLease()
    return NodeServicer(
        NONE,
        clock=FakeClock(),
        table=NONE,
        lease=lease,
        events=NONE,
        sidecar=NONE,
        shut_out=shut_out,
    )


async def renewed(node: NodeServicer, *serials: str) -> node_pb2.RenewReply:
    return await node.Renew(node_pb2.RenewRequest(scheduler_epoch=7, shut_out=serials), None)


async def test_what_the_last_renewal_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SHUT_OUT
    node = servicer(path)
    for serials in (("ab",), ("ab", "cd"), ("cd",), ()):
        await renewed(node, *serials)
        assert read_shut_out(path) == set(serials)


async def test_a_node_of_the_services_own_host_leaves_the_services_file_alone() -> None:
    assert not (await renewed(servicer(None), "ab")).HasField("error")


async def test_a_disk_that_takes_nothing_costs_no_lease_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / SHUT_OUT
    node = servicer(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("plexsvc.node.servicer.write_shut_out", full)
        assert not (await renewed(node, "ab")).HasField("error")
    await renewed(node, "ab")
    assert read_shut_out(path) == {"ab"}

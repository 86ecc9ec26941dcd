"""A rank whose line breaks is asked again, unless its WPG was forgotten."""

from __future__ import annotations

import grpc.aio
import pytest

from plexclient.wire.v1 import worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.frames.line import OrderLine
from plexsvc.ids import NodeId
from plexsvc.rpc.retry import Patience
from plexsvc.scheduler.orders.ranks import Rank
from tests.fakes.fake_clock import FakeHastyClock

PATIENCE = Patience(pause_us=1000, max_tries=3)


class FakeBrokenLine(OrderLine[worker_pb2.ExecuteReply]):
    """Breaks whatever is sent, and forgets the rank with the first if asked to."""

    def __init__(self, rank: Rank, *, forgets: bool) -> None:
        super().__init__("nowhere", reply=worker_pb2.ExecuteReply)
        self.num_sent = 0
        self._rank, self._forgets = rank, forgets

    async def execute(self, request: object) -> worker_pb2.ExecuteReply:
        del request
        self.num_sent += 1
        if self._forgets:
            await self._rank.close()
        raise ConnectionResetError("cut")


@pytest.mark.parametrize(("forgets", "num_sent"), [(False, 3), (True, 1)])
async def test_a_broken_line_is_tried_again_only_while_the_rank_is_kept(
    forgets: bool, num_sent: int
) -> None:
    rank = Rank(
        node_id=NodeId("n"),
        device=0,
        proc_id="wpg-1/0",
        incarnation=1,
        address="unix:/nowhere",
        channel=grpc.aio.insecure_channel("unix:/nowhere"),
    )
    rank.orders = line = FakeBrokenLine(rank, forgets=forgets)
    with pytest.raises(PlexError, match="wpg-1/0 at unix:/nowhere stopped answering") as died:
        await rank.execute(worker_pb2.ExecuteRequest(), clock=FakeHastyClock(), patience=PATIENCE)
    assert (died.value.code, line.num_sent) == (ErrorCode.WORKER_DIED, num_sent)
    await rank.close()

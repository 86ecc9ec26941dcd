"""What is shown of batches that wait."""

from __future__ import annotations

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.machine import RewardCore
from plexsvc.reward.core.state import PoolLimits
from plexsvc.reward.core.vocabulary import (
    BatchId,
    PlacesKnown,
    ProgramSpec,
    Resource,
    SamplesArrived,
    StageSpec,
)
from plexsvc.reward.view import rewards_view

S = 1_000_000
GPU = Resource(gpus=1)
PROGRAM = ProgramSpec(name="p", stages=(StageSpec(name="run", timeout_us=S, resource=GPU),))
BATCH = BatchId(TenantId("acme"), JobId("job-1"), b"b1")


def test_a_batch_whose_nodes_are_lost_says_so_and_how_long_it_waits() -> None:
    core = RewardCore(PoolLimits(no_room_us=60 * S))
    core.handle(PlacesKnown(at_us=0, places={"node-1": Resource(cpus=4)}))
    core.handle(SamplesArrived(at_us=0, batch=BATCH, program=PROGRAM, size=1, samples=(0,)))
    asked = pb.GetRewardsRequest(tenant="acme")
    (shown,) = rewards_view(core, asked, own=(), sandbox="", now_us=20 * S).batches
    assert shown.critical.endswith(
        "No node that could have a worker of cpu=1,mem=1GiB,gpu=1 is open: they are closed or "
        "lost; if none is back in 40 s, what waits is answered as an error"
    )

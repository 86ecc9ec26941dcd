"""Everybody may look, only operators may change; a request says who asks, not what it claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.admin import Admin

OPS = TenantId("ops")
LAB = TenantId("lab")
SHAPE = pb.JobShape(num_devices=1, period_us=10)

CHANGING: list[Message] = [
    pb.ChangeNodeRequest(node_id="n", change=pb.NODE_CHANGE_DRAIN),
    pb.AddNodeRequest(agent="host:1"),
    pb.RepackRequest(),
    pb.MoveJobRequest(job_id="j"),
    pb.PinJobRequest(job_id="j", is_pinned=True),
]
LOOKING: list[Message] = [
    pb.ListNodesRequest(),
    pb.PackRequest(),
    pb.WhatIfRequest(job=SHAPE),
    pb.ReportRequest(),
]


class FakeAdminScheduler:
    """Keeps the requests that got through."""

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def __getattr__(self, name: str) -> Callable[[Message, None], Awaitable[Message]]:
        async def take(request: Message, _: None) -> Message:
            self.seen.append(request)
            return pb.NodeView()

        return take


def rig() -> tuple[Admin, FakeAdminScheduler]:
    scheduler = FakeAdminScheduler()
    return Admin(scheduler, operators=("ops",)), scheduler  # type: ignore[arg-type] # a fake


async def ask(admin: Admin, request: Message, *, tenant: TenantId) -> Message:
    copy = type(request)()
    copy.CopyFrom(request)
    method = next(m for m, kind in admin.methods().values() if kind is type(request))
    return await method(copy, tenant=tenant)


@pytest.mark.parametrize("request_", CHANGING, ids=lambda r: type(r).__name__)
async def test_only_an_operator_changes_anything(request_: Message) -> None:
    admin, scheduler = rig()
    with pytest.raises(PlexError, match=r"router\.operators: ops") as caught:
        await ask(admin, request_, tenant=LAB)
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert scheduler.seen == []
    await ask(admin, request_, tenant=OPS)
    assert [(r.tenant, r.is_operator) for r in scheduler.seen] == [("ops", True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("request_", LOOKING, ids=lambda r: type(r).__name__)
async def test_a_tenant_looks_as_itself_whatever_it_claims(request_: Message) -> None:
    admin, scheduler = rig()
    claim = type(request_)()
    claim.CopyFrom(request_)
    claim.tenant, claim.is_operator = "ops", True  # type: ignore[attr-defined]
    await ask(admin, claim, tenant=LAB)
    assert [(r.tenant, r.is_operator) for r in scheduler.seen] == [("lab", False)]  # type: ignore[attr-defined]


def shape(*segments: tuple[int, int], **more: Any) -> pb.JobShape:  # noqa: ANN401 - fields of a message
    cycle = [pb.CycleSegment(offset_us=o, duration_us=d) for o, d in segments]
    return pb.JobShape(**{"num_devices": 1, "period_us": 10} | more, segments=cycle)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (pb.ChangeNodeRequest(node_id="n"), "CORDON"),
        (pb.ChangeNodeRequest(change=pb.NODE_CHANGE_DRAIN), "node_id"),
        (pb.AddNodeRequest(agent="nowhere"), "HOST:PORT"),
        (pb.MoveJobRequest(), "job_id"),
        (pb.PinJobRequest(), "job_id"),
        (pb.PackRequest(window_us=1 << 62), "window"),
        (pb.WhatIfRequest(job=shape(num_devices=0)), "num_devices"),
        (pb.WhatIfRequest(job=shape(max_slowdown_ppm=5)), "max_slowdown"),
        (pb.WhatIfRequest(job=shape((0, 4), (3, 2))), "segment 1"),
        (pb.WhatIfRequest(job=shape((8, 3))), "segment 0"),
        (pb.WhatIfRequest(job=shape((2, 0))), "segment 0"),
    ],
)
async def test_a_bad_request_is_refused_and_says_what_was_found(bad: Message, named: str) -> None:
    admin, scheduler = rig()
    with pytest.raises(PlexError, match=named) as caught:
        await ask(admin, bad, tenant=OPS)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert scheduler.seen == []

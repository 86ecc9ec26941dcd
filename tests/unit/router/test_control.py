"""Everybody may look, only operators may change; a request says who asks, not what it claims."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.config import RouterConfig
from plexsvc.router.control import METHODS, Control
from plexsvc.rpc.services import has_option

Reply = TypeVar("Reply", bound=Message)
OPS = TenantId("ops")
LAB = TenantId("lab")
SHAPE = pb.JobShape(num_devices=1, period_us=10)

CHANGING: list[Message] = [
    pb.ChangeNodeRequest(node_id="n", change=pb.NODE_CHANGE_DRAIN),
    pb.AddNodeRequest(agent="host:1"),
    pb.AddNodeRequest(agent="unix:/run/agent.sock"),
    pb.RepackRequest(),
    pb.MoveJobRequest(job_id="j"),
    pb.PinJobRequest(job_id="j", is_pinned=True),
    pb.DrainInstanceRequest(device="spot-a:0"),
    pb.OpenInstanceRequest(device="spot-a:0"),
    pb.LendInstanceRequest(name="chat", address="host:1", lease_us=1),
    pb.CreateTokenRequest(owner="lab", scope="submit"),
    pb.ListTokensRequest(),
    pb.RevokeTokenRequest(token_id="tok-1"),
    pb.ShutOutNodeRequest(node_id="n"),
    pb.SetQuotaRequest(owner="lab", what="jobs", most=1),
    pb.ListQuotasRequest(),
]
LOOKING: list[Message] = [
    pb.ListNodesRequest(),
    pb.ListInstancesRequest(),
    pb.PackRequest(),
    pb.WhatIfRequest(job=SHAPE),
    pb.ReportRequest(),
]


class FakeScheduler:
    """Keeps the requests that got through."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.replies: dict[type[Message], Any] = {}

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        assert METHODS[method].input_type is request.DESCRIPTOR
        self.seen.append(request)
        return self.replies[reply] if reply in self.replies else reply()

    async def submit(self, operation: ops.Operation) -> ops.OperationResult:
        raise AssertionError(operation)


def rig() -> tuple[Control, FakeScheduler]:
    scheduler = FakeScheduler()
    return Control(scheduler, config=RouterConfig(operators=("ops",))), scheduler


async def ask(control: Control, request: Message, *, tenant: TenantId) -> Message:
    copy = type(request)()
    copy.CopyFrom(request)
    name = next(n for n, method in METHODS.items() if method.input_type is request.DESCRIPTOR)
    return await control.forward(name, copy, tenant=tenant, is_operator=tenant == OPS)


async def test_an_operation_is_explained_by_the_digits_that_errors_show_and_by_no_fewer() -> None:
    control, scheduler = rig()
    for operation_id in (b"4444", b"1234567812345678"):
        await ask(control, pb.ExplainRequest(operation_id=operation_id), tenant=LAB)
    for operation_id in (b"333", b"12345678123456789"):
        with pytest.raises(PlexError, match="as errors and logs do") as caught:
            await ask(control, pb.ExplainRequest(operation_id=operation_id), tenant=LAB)
        assert caught.value.code is ErrorCode.BAD_REQUEST
    assert len(scheduler.seen) == 2


def test_every_forwarded_request_says_who_asks() -> None:
    requests = [method.input_type for method in METHODS.values()]
    assert all("tenant" in request.fields_by_name for request in requests)


def test_what_only_operators_may_do_is_tested_below() -> None:
    marked = {m.input_type for m in METHODS.values() if has_option(m, pb.operators_only)}
    assert marked == {request.DESCRIPTOR for request in CHANGING}


async def test_a_method_without_words_of_its_own_is_named_in_its_refusal() -> None:
    control, _ = rig()
    with pytest.raises(PlexError, match="tenant 'lab' may not repack: only operators may"):
        await control.forward("Repack", pb.RepackRequest(), tenant=LAB)


@pytest.mark.parametrize("request_", CHANGING, ids=lambda r: type(r).__name__)
async def test_only_an_operator_changes_anything(request_: Message) -> None:
    control, scheduler = rig()
    with pytest.raises(PlexError, match=r"router\.operators: ops") as caught:
        await ask(control, request_, tenant=LAB)
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert scheduler.seen == []
    await ask(control, request_, tenant=OPS)
    assert [(r.tenant, r.is_operator) for r in scheduler.seen] == [("ops", True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("request_", LOOKING, ids=lambda r: type(r).__name__)
async def test_a_tenant_looks_as_itself_whatever_it_claims(request_: Message) -> None:
    control, scheduler = rig()
    claim = type(request_)()
    claim.CopyFrom(request_)
    claim.tenant, claim.is_operator = "ops", True  # type: ignore[attr-defined]
    await ask(control, claim, tenant=LAB)
    assert [(r.tenant, r.is_operator) for r in scheduler.seen] == [("lab", False)]  # type: ignore[attr-defined]


def shape(*segments: tuple[int, int], **more: Any) -> pb.JobShape:
    cycle = [pb.CycleSegment(offset_us=o, duration_us=d) for o, d in segments]
    return pb.JobShape(**{"num_devices": 1, "period_us": 10} | more, segments=cycle)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (pb.ChangeNodeRequest(node_id="n"), "CORDON"),
        (pb.ChangeNodeRequest(change=pb.NODE_CHANGE_DRAIN), "node_id"),
        (pb.AddNodeRequest(agent="nowhere"), "HOST:PORT"),
        (pb.AddNodeRequest(agent="host:99999"), "HOST:PORT"),
        (pb.AddNodeRequest(agent="unix:here.sock"), "unix:/PATH"),
        (pb.MoveJobRequest(), "job_id"),
        (pb.CreateTokenRequest(owner="lab", scope="all"), "read, submit, admin"),
        (pb.CreateTokenRequest(owner="../lab", scope="read"), "tenant's name"),
        (pb.CreateTokenRequest(owner="lab", scope="read", name="a\n"), "token's name"),
        (pb.SetQuotaRequest(owner="lab", what="jobs"), "quota of 0 jobs"),
        (
            pb.SetQuotaRequest(owner="lab", what="gold", most=1),
            "one of jobs, devices, host_bytes, requests",
        ),
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
    control, scheduler = rig()
    with pytest.raises(PlexError, match=named) as caught:
        await ask(control, bad, tenant=OPS)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert scheduler.seen == []


ADDRESS = pb.NodeAddress(node_id="n", agent="unix:/run/agent", state_manager="10.0.0.1:5")
STATUS = pb.ClusterStatus(
    nodes=[pb.NodeStatus(node_id="n", address=ADDRESS)],
    deployments=[
        pb.Deployment(
            staging_nodes=[ADDRESS], former_nodes=[ADDRESS], executor_address="10.0.0.1:6"
        )
    ],
)


async def test_where_processes_listen_is_told_to_operators_alone() -> None:
    for whole in (STATUS, pb.ListNodesReply(nodes=[pb.NodeView(node_id="n", address=ADDRESS)])):
        asked = pb.GetStatusRequest() if whole is STATUS else pb.ListNodesRequest()
        for tenant, sees in ((OPS, True), (LAB, False)):
            control, scheduler = rig()
            scheduler.replies[type(whole)] = type(whole).FromString(whole.SerializeToString())
            found = str(await ask(control, asked, tenant=tenant))
            assert [word in found for word in ("/run", "10.0.0.1")] == [sees, sees]
            assert "node_id" in found


def test_no_reply_to_tenants_has_an_address_that_is_not_hidden() -> None:
    """A new field that tells addresses is marked, or this names it."""

    def open_to_all(message: Descriptor, path: str) -> list[str]:
        found: list[str] = []
        for field in message.fields:
            if has_option(field, pb.members_only):
                continue
            if "address" in field.name or field.message_type is ADDRESS.DESCRIPTOR:
                found.append(f"{path}.{field.name}")
            elif field.message_type is not None:
                found += open_to_all(field.message_type, f"{path}.{field.name}")
        return found

    methods = pb.DESCRIPTOR.services_by_name["Router"].methods
    assert not [name for m in methods for name in open_to_all(m.output_type, m.name)]

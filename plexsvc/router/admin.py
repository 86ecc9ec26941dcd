"""The calls of those who run the cluster: who may make them, and what each must name.

Everybody may look, with other tenants' names left out; only an operator (`router.operators`) may
change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.api import SchedulerApi
from plexsvc.router.validation import bad_request

MAX_SEGMENTS: Final = 4096
"""Segments of one cycle that `what_if` takes."""

MAX_WINDOW_US: Final = 30 * 86_400_000_000

CHANGES: Final[Mapping[int, str]] = {
    pb.NODE_CHANGE_CORDON: "cordon",
    pb.NODE_CHANGE_DRAIN: "drain",
    pb.NODE_CHANGE_UNCORDON: "uncordon",
}


class Asked(Protocol):
    """A request that says who asks."""

    tenant: str
    is_operator: bool


Request = TypeVar("Request", bound=Asked)
Unary = Callable[..., Coroutine[Any, Any, Message]]


class Admin:
    """The Router's admin methods, each given the caller's tenant."""

    def __init__(self, scheduler: SchedulerApi, *, operators: tuple[str, ...]) -> None:
        self._scheduler = scheduler
        self._operators = frozenset(operators)

    def filled(self, request: Request, tenant: TenantId) -> Request:
        """Return the request with who asks, whatever it claimed."""
        request.tenant = tenant
        request.is_operator = tenant in self._operators
        return request

    async def list_nodes(
        self, request: pb.ListNodesRequest, *, tenant: TenantId
    ) -> pb.ListNodesReply:
        """Return the nodes and who lives there."""
        return await self._scheduler.ListNodes(self.filled(request, tenant), None)

    async def change_node(self, request: pb.ChangeNodeRequest, *, tenant: TenantId) -> pb.NodeView:
        """Cordon, drain or uncordon a node."""
        if request.change not in CHANGES or not request.node_id:
            raise bad_request("change_node needs a node_id and one of CORDON, DRAIN, UNCORDON")
        self._only_operators(tenant, f"{CHANGES[request.change]} node {request.node_id}")
        return await self._scheduler.ChangeNode(self.filled(request, tenant), None)

    async def add_node(self, request: pb.AddNodeRequest, *, tenant: TenantId) -> pb.NodeView:
        """Take a node agent in."""
        host, _, port = request.agent.rpartition(":")
        if not host or not port.isdigit():
            raise bad_request(f"{request.agent!r} is not the HOST:PORT of a node agent")
        self._only_operators(tenant, f"add node agent {request.agent}")
        return await self._scheduler.AddNode(self.filled(request, tenant), None)

    async def get_pack(self, request: pb.PackRequest, *, tenant: TenantId) -> pb.PackReply:
        """Return who owns which slots of each node group."""
        if request.window_us > MAX_WINDOW_US:
            raise bad_request(
                f"a window of {request.window_us} us is asked for; at most {MAX_WINDOW_US}"
            )
        return await self._scheduler.GetPack(self.filled(request, tenant), None)

    async def what_if(self, request: pb.WhatIfRequest, *, tenant: TenantId) -> pb.WhatIfReply:
        """Say where a job would go and what it would cost the others."""
        _check_shape(request.job)
        return await self._scheduler.WhatIf(self.filled(request, tenant), None)

    async def repack(self, request: pb.RepackRequest, *, tenant: TenantId) -> pb.MovesReply:
        """Order the moves that pay for themselves now."""
        self._only_operators(tenant, "repack")
        return await self._scheduler.Repack(self.filled(request, tenant), None)

    async def move_job(self, request: pb.MoveJobRequest, *, tenant: TenantId) -> pb.MovesReply:
        """Order a job's training deployments to other devices."""
        _check_job(request.job_id, call="move_job")
        self._only_operators(tenant, f"move job {request.job_id}")
        return await self._scheduler.MoveJob(self.filled(request, tenant), None)

    async def pin_job(self, request: pb.PinJobRequest, *, tenant: TenantId) -> pb.PinJobReply:
        """Keep a job where it is, or let it be moved again."""
        _check_job(request.job_id, call="pin_job")
        verb = "pin" if request.is_pinned else "unpin"
        self._only_operators(tenant, f"{verb} job {request.job_id}")
        return await self._scheduler.PinJob(self.filled(request, tenant), None)

    async def get_report(self, request: pb.ReportRequest, *, tenant: TenantId) -> pb.ReportReply:
        """Say who waited for whom."""
        return await self._scheduler.GetReport(self.filled(request, tenant), None)

    def methods(self) -> dict[str, tuple[Unary, type[Message]]]:
        """Return the methods by their names on the wire, with their requests."""
        return {
            "ListNodes": (self.list_nodes, pb.ListNodesRequest),
            "ChangeNode": (self.change_node, pb.ChangeNodeRequest),
            "AddNode": (self.add_node, pb.AddNodeRequest),
            "GetPack": (self.get_pack, pb.PackRequest),
            "WhatIf": (self.what_if, pb.WhatIfRequest),
            "Repack": (self.repack, pb.RepackRequest),
            "MoveJob": (self.move_job, pb.MoveJobRequest),
            "PinJob": (self.pin_job, pb.PinJobRequest),
            "GetReport": (self.get_report, pb.ReportRequest),
        }

    def _only_operators(self, tenant: TenantId, asked: str) -> None:
        if tenant not in self._operators:
            who = ", ".join(sorted(self._operators)) or "nobody"
            raise PlexError(
                ErrorCode.FORBIDDEN,
                f"tenant {tenant!r} may not {asked}: only operators may (router.operators: {who}); "
                "use an operator's token",
                tenant=tenant,
            )


def _check_job(job_id: str, *, call: str) -> None:
    if not job_id:
        raise bad_request(f"{call} got no job_id; `plexctl job list` shows them")


def _check_shape(job: pb.JobShape) -> None:
    """Refuse a cycle that cannot be one."""
    if not job.num_devices or not job.period_us:
        raise bad_request("what_if needs num_devices and period_us above 0")
    if job.max_slowdown_ppm and job.max_slowdown_ppm < 1_000_000:
        raise bad_request(f"max_slowdown_ppm {job.max_slowdown_ppm} is below 1000000 (none at all)")
    if len(job.segments) > MAX_SEGMENTS:
        raise bad_request(f"{len(job.segments)} segments; at most {MAX_SEGMENTS}")
    before = 0
    for number, segment in enumerate(job.segments):
        end = segment.offset_us + segment.duration_us
        if segment.offset_us < before or not segment.duration_us or end > job.period_us:
            raise bad_request(
                f"segment {number} is [{segment.offset_us}, {end}) us; wanted: not empty, after "
                f"the one before, inside the period of {job.period_us} us"
            )
        before = end

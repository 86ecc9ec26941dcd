"""Control calls: checked, given their tenant and forwarded to the scheduler's method of that name.

Everybody may look, with other tenants' names left out, and fields that are `members_only` in
service.proto. A method that is `operators_only` there is for operators alone: the tenants of
`router.operators`, and who has a token of scope admin. A new method needs nothing here unless its
requests must satisfy a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from plexclient.ids import OPERATION_ID_BYTES, SHOWN_BYTES
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.ids import TenantId
from plexsvc.router import bounds, names
from plexsvc.router.api import SERVICE as SCHEDULER
from plexsvc.router.api import Reply, SchedulerApi
from plexsvc.router.config import RouterConfig
from plexsvc.router.validation import check_operation_id
from plexsvc.rpc.addresses import socket_path
from plexsvc.rpc.services import has_option, reply_type, unary_methods

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Router"]

METHODS: Final[Mapping[str, MethodDescriptor]] = {
    name: method
    for name, method in unary_methods(SERVICE).items()
    if name in SCHEDULER.methods_by_name
}
"""The methods that both services have."""

MAX_PORT: Final = 65_535
MAX_REQUEST_CHARS: Final = 4096

MAX_SEGMENTS: Final = 512
"""Segments of one cycle that `what_if` takes."""

OUTCOMES: Final = (pb.JOB_STATE_COMPLETED, pb.JOB_STATE_FAILED, pb.JOB_STATE_CANCELLED)
CHANGES: Final[Mapping[int, str]] = {
    pb.NODE_CHANGE_CORDON: "cordon",
    pb.NODE_CHANGE_DRAIN: "drain",
    pb.NODE_CHANGE_UNCORDON: "uncordon",
}


class Control:
    """The methods that both services have, each given the caller's tenant."""

    def __init__(self, scheduler: SchedulerApi, *, config: RouterConfig) -> None:
        self._scheduler = scheduler
        self._config = config

    async def forward(
        self, name: str, request: Any, *, tenant: TenantId, is_operator: bool = False
    ) -> Message:
        """Return the scheduler's reply to a request that says who asks, whatever it claimed.

        Raises:
            PlexError: `bad_request`, `forbidden`, or what the scheduler refuses.
        """
        method = METHODS[name]
        request.tenant = tenant
        if "is_operator" in request.DESCRIPTOR.fields_by_name:
            request.is_operator = is_operator
        bounds.check(request)
        check = CHECKS.get(name)
        if check is not None:
            check(request, self._config)
        if has_option(method, pb.operators_only) and not is_operator:
            describe = ASKED.get(name)
            words = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
            asked = words if describe is None else describe(request)
            who = ", ".join(sorted(self._config.operators)) or "nobody"
            raise PlexError(
                ErrorCode.FORBIDDEN,
                f"tenant {tenant!r} may not {asked}: only operators may (router.operators: {who}); "
                "use an operator's token, or one of scope admin",
                tenant=tenant,
            )
        reply = await self._scheduler.call(name, request, reply_type(method))
        return reply if is_operator else shown(reply)


def shown(reply: Reply) -> Reply:
    """Return a reply without what is `members_only` in service.proto."""
    for field in _hiding(reply.DESCRIPTOR):
        if has_option(field, pb.members_only):
            reply.ClearField(field.name)
        elif field.is_repeated:
            for part in getattr(reply, field.name):
                shown(part)
        elif reply.HasField(field.name):
            shown(getattr(reply, field.name))
    return reply


@cache
def _hiding(message: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message that are `members_only`, or hold some."""
    return tuple(
        field
        for field in message.fields
        if has_option(field, pb.members_only)
        or (field.message_type is not None and _hiding(field.message_type))
    )


def _check_outcome(request: pb.EndJobRequest, _: RouterConfig) -> None:
    if request.outcome not in OUTCOMES:
        raise bad_request("end_job needs the outcome COMPLETED, FAILED or CANCELLED")


def _check_explained(request: pb.ExplainRequest, _: RouterConfig) -> None:
    nbytes = len(request.operation_id)
    if not nbytes and request.job_id:
        return
    if not SHOWN_BYTES <= nbytes <= OPERATION_ID_BYTES:
        raise bad_request(
            f"explain got {2 * nbytes} digits of an operation's id; give the first "
            f"{2 * SHOWN_BYTES}, as errors and logs do, or more of its {2 * OPERATION_ID_BYTES}"
        )


def _check_change(request: pb.ChangeNodeRequest, _: RouterConfig) -> None:
    if request.change not in CHANGES or not request.node_id:
        raise bad_request("change_node needs a node_id and one of CORDON, DRAIN, UNCORDON")


def _check_agent(request: pb.AddNodeRequest | pb.JoinNodeRequest, _: RouterConfig) -> None:
    path = socket_path(request.agent)
    host, _colon, port = request.agent.rpartition(":")
    is_port = host and port.isdecimal() and 0 < int(port) <= MAX_PORT
    if not (path.is_absolute() if path is not None else is_port):
        raise bad_request(
            f"{request.agent!r} is not where a node agent listens: give HOST:PORT, with a port up "
            f"to {MAX_PORT}, or unix:/PATH for one on this host"
        )


def _check_joining(request: pb.JoinNodeRequest, _: RouterConfig) -> None:
    if len(request.request) > MAX_REQUEST_CHARS:
        raise bad_request(f"a request for a certificate has at most {MAX_REQUEST_CHARS} characters")
    if request.agent:
        _check_agent(request, _)


def _check_job(request: pb.MoveJobRequest | pb.PinJobRequest, _: RouterConfig) -> None:
    if not request.job_id:
        raise bad_request("the request names no job; give a job_id (`plexctl job list`)")


def _check_shape(request: pb.WhatIfRequest, _: RouterConfig) -> None:
    """Refuse a cycle that cannot be one."""
    job = request.job
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


CHECKS: Final[Mapping[str, Callable[[Any, RouterConfig], None]]] = {
    "CreateJob": names.check_job,
    "EndJob": _check_outcome,
    "CancelOperation": lambda request, _: check_operation_id(request.operation_id),
    "ExplainOperation": _check_explained,
    "ChangeNode": _check_change,
    "AddNode": _check_agent,
    "JoinNode": _check_joining,
    "CreateToken": names.check_token,
    "SetQuota": names.check_quota,
    "WhatIf": _check_shape,
    "MoveJob": _check_job,
    "PinJob": _check_job,
}
"""What requests must satisfy; the others may carry anything."""

ASKED: Final[Mapping[str, Callable[[Any], str]]] = {
    "ChangeNode": lambda request: f"{CHANGES[request.change]} node {request.node_id}",
    "AddNode": lambda request: f"add node agent {request.agent}",
    "ShutOutNode": lambda request: f"shut out node {request.node_id}",
    "CreateToken": lambda request: f"create a token for tenant {request.owner!r}",
    "RevokeToken": lambda request: f"revoke token {request.token_id!r}",
    "SetQuota": lambda request: f"set the quota of tenant {request.owner!r}",
    "MoveJob": lambda request: f"move job {request.job_id}",
    "PinJob": lambda request: f"{'pin' if request.is_pinned else 'unpin'} job {request.job_id}",
}
"""What a refusal says that was asked, where the method's name says too little."""

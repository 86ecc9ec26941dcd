"""The `Scheduler` service: called by the router of this process, and by routers apart over gRPC.

The handlers lie in the files of their subjects. Each file has a table of its methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import grpc.aio
from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2
from plexsvc.rpc.operating import OperationStreams
from plexsvc.rpc.services import Context, Methods, add_service
from plexsvc.scheduler.api import deployments, operators, records, sessions
from plexsvc.scheduler.api.joining import Joining
from plexsvc.scheduler.api.operations import Submissions
from plexsvc.scheduler.api.pace import Pace
from plexsvc.scheduler.api.quotas import Quotas
from plexsvc.scheduler.api.tokens import Tokens
from plexsvc.scheduler.api.views import cost, explaining, instances, nodes, pictures, report, status
from plexsvc.scheduler.live import LiveScheduler

Reply = TypeVar("Reply", bound=Message)
Handled = Callable[..., Awaitable[Message]]

CHANGES: Final[tuple[Methods, ...]] = (
    sessions.METHODS,
    deployments.METHODS,
    operators.METHODS,
    records.METHODS,
    instances.CHANGES,
)
QUESTIONS: Final[tuple[Methods, ...]] = (
    cost.METHODS,
    explaining.METHODS,
    instances.METHODS,
    nodes.METHODS,
    pictures.METHODS,
    report.METHODS,
    status.METHODS,
)
SERVICE: Final = service_pb2.DESCRIPTOR.services_by_name["Scheduler"]


class SchedulerServicer:
    """The calls of routers on one scheduler."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        operations = Submissions(scheduler)
        self.submit = operations.submit
        self.streams = OperationStreams(
            max_operations=scheduler.config.max_operations_per_stream,
            key="scheduler.max_operations_per_stream",
        )
        self._tokens = Tokens(scheduler)
        pace = Pace(scheduler.clock)

        async def in_turn(method: Handled, request: Any) -> Message:
            return await pace.answer(request.tenant, lambda: method(scheduler, request))

        self.methods: Methods = {
            **{name: partial(m, scheduler) for table in CHANGES for name, m in table.items()},
            **{name: partial(in_turn, m) for table in QUESTIONS for name, m in table.items()},
            "CancelOperation": operations.cancel,
            "GetResult": operations.get_result,
            "PayloadStaged": operations.payload_staged,
            **self._tokens.methods,
            **Joining(scheduler, self._tokens).methods,
            **Quotas(scheduler, on_changed=self._tokens.changed).methods,
        }

    def stop(self) -> None:
        """Let calls that would stay open end; call it before the server is stopped."""
        self.streams.stop()
        self._tokens.stop()

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Return the reply of a method with one request and one reply.

        Raises:
            PlexError: what the scheduler refuses.
        """
        found = await self.methods[method](request)
        assert isinstance(found, reply), (method, found)
        return found


def add_to_server(servicer: SchedulerServicer, server: grpc.aio.Server) -> None:
    """Serve the Scheduler service on `server`."""

    def handled(
        method: Callable[[Any], Awaitable[Message]],
    ) -> Callable[[Any, Context], Awaitable[Message]]:
        return lambda request, _: method(request)

    async def operate(_: object, context: Context) -> None:
        await servicer.streams.serve(context, servicer.submit)

    calls = {name: handled(method) for name, method in servicer.methods.items()}
    add_service(server, SERVICE, calls=calls | {"Operate": operate})

"""The `Scheduler` service: called by the router of this process, and by routers apart over gRPC.

The handlers lie in the files of their subjects. Each file has a table of its methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import grpc.aio
from google.protobuf.message import Message

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.rpc.services import Context, Methods, add_service
from plexsvc.scheduler.api import deployments, operators, sessions
from plexsvc.scheduler.api.operations import Operations
from plexsvc.scheduler.api.views import explaining, nodes, pictures, report, status
from plexsvc.scheduler.live import LiveScheduler

Reply = TypeVar("Reply", bound=Message)

TABLES: Final[tuple[Methods, ...]] = (
    sessions.METHODS,
    deployments.METHODS,
    operators.METHODS,
    explaining.METHODS,
    nodes.METHODS,
    pictures.METHODS,
    report.METHODS,
    status.METHODS,
)
SERVICE: Final = service_pb2.DESCRIPTOR.services_by_name["Scheduler"]


class SchedulerServicer:
    """The calls of routers on one driver."""

    def __init__(self, driver: LiveScheduler) -> None:
        self.line_port = 0
        """Where `answer` is served, told to routers."""
        self._operations = Operations(driver)
        self.submit = self._operations.submit
        bound = {name: partial(m, driver) for table in TABLES for name, m in table.items()}
        self.methods: Methods = {
            **bound,
            "GetResult": self._operations.get_result,
            "PayloadStaged": self._operations.payload_staged,
            "SubmitOperation": self._operations.submit,
            "GetLine": self._get_line,
        }

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Return the reply of a method with one request and one reply.

        Raises:
            PlexError: what the scheduler refuses.
        """
        found = await self.methods[method](request)
        assert isinstance(found, reply), (method, found)
        return found

    async def answer(self, order: bytes) -> bytes:
        """Do what `submit` does, from bytes to bytes.

        Raises:
            DecodeError: `order` is no operation.
        """
        result = await self.submit(operations_pb2.Operation.FromString(order))
        return result.SerializeToString()

    async def _get_line(self, _: service_pb2.LineRequest) -> service_pb2.LineReply:
        return service_pb2.LineReply(port=self.line_port)


def add_to_server(servicer: SchedulerServicer, server: grpc.aio.Server) -> None:
    """Serve the Scheduler service on `server`."""

    def handled(
        method: Callable[[Any], Awaitable[Message]],
    ) -> Callable[[Any, Context], Awaitable[Message]]:
        return lambda request, _: method(request)

    calls = {name: handled(method) for name, method in servicer.methods.items()}
    add_service(server, SERVICE, calls=calls)

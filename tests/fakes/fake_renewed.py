"""Fake node agent whose lease is renewed: it answers on threads of its own, as another process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.errors import PlexError


class FakeRenewed(node_pb2_grpc.NodeServicer):
    """Counts the renewals that come."""

    def __init__(self, *, epoch: int, ttl_us: int) -> None:
        self._expected = (epoch, ttl_us)
        self.renewed = threading.Semaphore(0)
        self.error: PlexError | None = None

    def Renew(self, request: node_pb2.RenewRequest, context: Any) -> node_pb2.RenewReply:
        del context
        assert (request.scheduler_epoch, request.ttl_us) == self._expected
        self.renewed.release()
        if self.error is not None:
            return node_pb2.RenewReply(error=to_wire(self.error))
        return node_pb2.RenewReply(state_manager_restarts=3)


@contextmanager
def serving(agent: FakeRenewed, path: Path) -> Iterator[str]:
    """Serve an agent at a Unix socket; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    node_pb2_grpc.add_NodeServicer_to_server(agent, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield f"unix:{path}"
    finally:
        server.stop(0).wait()

"""Callers without a right: every method of every service, and what they may try to get in with."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from plexclient.errors import PlexError
from plexclient.failures import error_of
from plexclient.wire.v1 import (
    node_pb2,
    reward_pb2,
    rollout_pb2,
    service_pb2,
    statemanager_pb2,
    worker_pb2,
)
from plexsvc.rpc.keys import SECRET_KEY, ClusterKeys
from tests.rigs.keys import FOREIGN

FILES: Final = (node_pb2, reward_pb2, rollout_pb2, service_pb2, statemanager_pb2, worker_pb2)
SERVICES: Final = {
    service.name: service for file in FILES for service in file.DESCRIPTOR.services_by_name.values()
}
AGENTS: Final = "SharedEngine"
"""What a node agent calls in its own processes alone (`tests/process/node/test_seats.py`)."""
METHODS: Final = [
    (service, m) for service in SERVICES.values() if service.name != AGENTS for m in service.methods
]
CALL_S: Final = 120.0
MAX_ASKS: Final = 10

Metadata = tuple[tuple[str, str], ...]


def members_secrets(keys: ClusterKeys) -> dict[str, Metadata]:
    """Return what is not the secret of a cluster."""
    return {
        "nothing": (),
        "an empty secret": ((SECRET_KEY, ""),),
        "a wrong secret": ((SECRET_KEY, keys.secret[:-1] + "!"),),
        "another cluster's secret": FOREIGN.metadata,
    }


async def call(
    channel: Any,
    service: ServiceDescriptor,
    method: MethodDescriptor,
    metadata: Metadata,
) -> None:
    """Make a call of any kind to its end."""
    path, requests = f"/{service.full_name}/{method.name}", [b""]
    match method.client_streaming, method.server_streaming:
        case False, False:
            await channel.unary_unary(path)(b"", metadata=metadata, timeout=CALL_S)
        case True, False:
            await channel.stream_unary(path)(iter(requests), metadata=metadata, timeout=CALL_S)
        case False, True:
            async for _ in channel.unary_stream(path)(b"", metadata=metadata, timeout=CALL_S):
                pass
        case _:
            made = channel.stream_stream(path)
            async for _ in made(iter(requests), metadata=metadata, timeout=CALL_S):
                pass


async def refusal(
    channel: grpc.aio.Channel,
    service: ServiceDescriptor,
    method: MethodDescriptor,
    metadata: Metadata,
) -> PlexError:
    """Return what a call is refused with.

    When a stream is answered before its first message is sent, gRPC's client may say that it
    could not send in place of the answer; asking again shows it.
    """
    for _ in range(MAX_ASKS):
        try:
            await call(channel, service, method, metadata)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not grpc.StatusCode.INTERNAL:
                return error_of(failure, text="")
    raise AssertionError(f"{method.full_name} was not refused")

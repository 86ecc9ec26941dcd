"""gRPC channels and servers with the one option set that notices a silent peer in ten seconds."""

from __future__ import annotations

from typing import Final

import grpc

from plexclient.wire.channels import CHANNEL_OPTIONS, LIMITS, Options

SERVER_OPTIONS: Final[Options] = (
    *LIMITS,
    ("grpc.keepalive_time_ms", 30_000),  # a stream without a deadline must not outlive its client
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


def open_channel(target: str) -> grpc.aio.Channel:
    """Return an aio channel to `host:port` or `unix:path`; every call on it needs a deadline."""
    return grpc.aio.insecure_channel(target, options=list(CHANNEL_OPTIONS))


def new_server() -> grpc.aio.Server:
    """Return an aio server with the shared options; the caller adds servicers and ports."""
    return grpc.aio.server(options=list(SERVER_OPTIONS))

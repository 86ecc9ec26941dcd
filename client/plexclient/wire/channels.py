"""Options of gRPC channels: the limit of a message, and pings that notice a silent peer in 5 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_MESSAGE_BYTES: Final = 8 << 20
"""Largest gRPC message; payloads beyond `INLINE_PAYLOAD_BYTES` stream in chunks far below it."""

Options = Sequence[tuple[str, int | str]]

LIMITS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
CHANNEL_OPTIONS: Final[Options] = (
    *LIMITS,
    ("grpc.keepalive_time_ms", 2500),
    ("grpc.keepalive_timeout_ms", 2500),
    ("grpc.http2.ping_timeout_ms", 2500),  # else 60 s, whatever the line above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""What every channel has, the client's and those between our own processes."""

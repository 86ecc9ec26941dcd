"""The errors of the service are the client's: one set of codes, owned by plexclient."""

from __future__ import annotations

from plexclient.errors import (
    RETRYABLE,
    ErrorCode,
    PlexError,
    bad_batch,
    bad_request,
    internal,
    not_found,
    payload_too_large,
    queue_full,
    unavailable,
)

__all__ = [
    "RETRYABLE",
    "ErrorCode",
    "PlexError",
    "bad_batch",
    "bad_request",
    "internal",
    "not_found",
    "payload_too_large",
    "queue_full",
    "unavailable",
]

"""The errors of the service are the client's: one set of codes, owned by plexclient."""

from __future__ import annotations

from plexclient.errors import RETRYABLE, ErrorCode, PlexError

__all__ = ["RETRYABLE", "ErrorCode", "PlexError"]

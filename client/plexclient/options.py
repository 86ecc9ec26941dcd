"""Options of a connection: how long it retries, and how much it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plexclient.checks import real, whole

LEAST_S: Final = 0.01
"""Shortest time that is no busy loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Limits of one connection; every wait and buffer of the client has one here.

    Raises:
        PlexError: `bad_request` for a limit with which nothing would go on.
    """

    retry_for_s: float = 120.0
    """How long a lost connection or a retryable refusal is retried before it is raised."""

    attempt_timeout_s: float = 60.0
    """Deadline of one attempt of a long call; when it passes, the call attaches again by its id."""

    rpc_timeout_s: float = 10.0
    """Deadline of one attempt of a short call (create, keep alive, end, status)."""

    operation_timeout_s: float = 3600.0
    """How long an operation may stay unanswered before `operation_timeout` is raised; a generate,
    without a new token."""

    deploy_timeout_s: float = math.inf
    """How long a deployment may take to become ready before `operation_timeout` is raised: by
    default as long as it waits its turn."""

    staging_settle_s: float = 10.0
    """How long the service's answer is awaited after it refused an operation's payload."""

    staging_bytes_per_s: float = 4e6
    """Slowest upload or download worth waiting for; adds to the deadline of one attempt."""

    max_in_flight_per_deployment: int = 48
    """Operations of a deployment sent and not answered; later ones wait in the client, in order."""

    max_unanswered_payload_bytes: int = 4 << 30
    """Payload bytes kept for unanswered operations; more is refused with `queue_full`."""

    keepalive_s: float = 1.0
    """Time between keepalives; a quarter of the session's time to live when that is less."""

    cache_dir: Path | None = None
    """Where tokenizer files are kept; by default a directory that goes with the connection."""

    def __post_init__(self) -> None:
        """Refuse what calls would wait behind for ever, or try again without a pause."""
        for name in ("retry_for_s", "staging_settle_s"):  # these may be 0
            real(f"ClientOptions.{name}", getattr(self, name), least=0)
        for name in ("attempt_timeout_s", "rpc_timeout_s", "keepalive_s"):
            real(f"ClientOptions.{name}", getattr(self, name), least=LEAST_S)
        real("ClientOptions.staging_bytes_per_s", self.staging_bytes_per_s, least=1)
        for name in ("max_in_flight_per_deployment", "max_unanswered_payload_bytes"):
            whole(f"ClientOptions.{name}", getattr(self, name), least=1, most=2**63 - 1)

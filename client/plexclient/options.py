"""Options of a connection: how long it retries, and how much it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Limits of one connection; every wait and buffer of the client has one here."""

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

"""Errors a caller may meet: each says what was asked, what was found and what to do."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The codes on the wire. A code never changes its meaning; new causes get new codes."""

    BAD_REQUEST = "bad_request"
    BAD_BATCH = "bad_batch"
    UNKNOWN_LOSS = "unknown_loss"
    UNKNOWN_MODEL = "unknown_model"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    JOB_ENDED = "job_ended"
    STALE_SEQUENCE = "stale_sequence"
    SEQUENCE_GAP = "sequence_gap"
    QUEUE_FULL = "queue_full"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    STAGING_FULL = "staging_full"
    STAGING_TIMEOUT = "staging_timeout"
    WINDOW_BROKEN = "window_broken"
    NO_PLACEMENT = "no_placement"
    NO_ROOM = "no_room"
    STALE_FENCE = "stale_fence"
    DEPENDENCY_FAILED = "dependency_failed"
    DEPLOYMENT_FAILED = "deployment_failed"
    WORKER_DIED = "worker_died"
    NODE_LOST = "node_lost"
    OPERATION_TIMEOUT = "operation_timeout"
    CANCELLED = "cancelled"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    LOGPROB_MISMATCH = "logprob_mismatch"
    RESULT_GONE = "result_gone"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


RETRYABLE = frozenset(
    {ErrorCode.QUEUE_FULL, ErrorCode.STAGING_FULL, ErrorCode.UNAVAILABLE, ErrorCode.NO_ROOM}
)
"""A retryable refusal consumes no sequence number: the same operation may be submitted again."""


class PlexError(Exception):
    """A refusal or failure with a `code`, a complete `message` and its `facts`.

    Attributes:
        code: one of `ErrorCode`.
        facts: what was found, by name; values are strings on the wire.
        retryable: whether submitting the same operation again may succeed.
    """

    def __init__(self, code: ErrorCode | str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = ErrorCode(code)
        self.message = message
        self.facts = {name: str(value) for name, value in facts.items()}

    @property
    def retryable(self) -> bool:
        """Whether the same operation may be submitted again."""
        return self.code in RETRYABLE

    def __str__(self) -> str:
        """Return `code: message`."""
        return f"{self.code}: {self.message}"

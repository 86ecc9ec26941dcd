"""Error codes and the exception that carries them."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The codes on the wire. A code never changes its meaning; new causes get new codes."""

    BAD_REQUEST = "bad_request"
    """A value of the request cannot be meant; the message names the field. Correct it and submit
    again.
    """
    BAD_BATCH = "bad_batch"
    """The arrays of a batch contradict each other, the loss or the model. Correct the batch."""
    UNKNOWN_LOSS = "unknown_loss"
    """No built-in loss has this name. Use one that the message lists, or `backward` on your own."""
    LOGPROB_MISMATCH = "logprob_mismatch"
    """The sampler's logprobs are further from the policy's than the deployment's `max_logprob_gap`.
    Nothing was added. `sync` before `generate`, and train at the temperature of the samples.
    """
    UNKNOWN_MODEL = "unknown_model"
    """The model directory cannot be read, or holds an architecture that no backend runs."""
    UNAUTHENTICATED = "unauthenticated"
    """The call carries no token, or one that the router does not know, that expired or was revoked.
    """
    FORBIDDEN = "forbidden"
    """The token may not do this: only operators administer, and one of scope `read` only looks."""
    NOT_FOUND = "not_found"
    """No such job, deployment, operation, version or file of this tenant."""
    JOB_ENDED = "job_ended"
    """The job has ended. Start another."""
    STALE_SEQUENCE = "stale_sequence"
    """Another operation used this sequence number. The message names the next free one."""
    SEQUENCE_GAP = "sequence_gap"
    """An earlier sequence number is missing, too far back or for too long. Submit the missing
    operation.
    """
    QUEUE_FULL = "queue_full"
    """A bound of the service is reached; the message names its key. Nothing happened: try again
    later.
    """
    OVER_BUDGET = "over_budget"
    """The tenant has spent the device-seconds that it may (`plexctl quota`): its jobs end, and none
    begins. Ask an operator for more, and start again.
    """
    PAYLOAD_TOO_LARGE = "payload_too_large"
    """A payload or message exceeds its bound. Split it."""
    STAGING_FULL = "staging_full"
    """The node has no staging memory left for this payload. Nothing happened: try again later."""
    DISK_FULL = "disk_full"
    """The disk of the service's journal takes no more; what runs goes on. Nothing happened: try
    again when there is room, or have the operator make some.
    """
    STAGING_TIMEOUT = "staging_timeout"
    """A payload did not arrive in time. Submit the operation again under the next number."""
    WINDOW_BROKEN = "window_broken"
    """An operation failed after it had changed gradients. Call `zero_grad`, then repeat the
    window.
    """
    NO_PLACEMENT = "no_placement"
    """No devices can hold this deployment, or none came free in `scheduler.placement_timeout_us`,
    where that is set."""
    NO_ROOM = "no_room"
    """Device memory, or host memory and the disk of parked state, do not suffice, or that disk
    fails; the message says which. Free some, or try again later."""
    OUT_OF_MEMORY = "out_of_memory"
    """A rank's device or host lacked memory for what an operation computes; the message has the
    numbers. No weight changed and the deployment goes on. Use smaller `micro_batch_tokens`; where
    gradients had changed, call `zero_grad` and repeat the window.
    """
    STALE_FENCE = "stale_fence"
    """The caller acts under an old epoch, lease or incarnation: something newer replaced it."""
    DEPENDENCY_FAILED = "dependency_failed"
    """An operation named in `after` failed or never came, so this one did not run."""
    DEPLOYMENT_FAILED = "deployment_failed"
    """The deployment has failed or was stopped; the message says why. Deploy again."""
    WORKER_DIED = "worker_died"
    """A process of the deployment died; the error carries the end of its log. Deploy again."""
    NODE_LOST = "node_lost"
    """The node stopped renewing its lease, so its processes are dead. Deploy again."""
    OPERATION_TIMEOUT = "operation_timeout"
    """The operation made no progress for too long, or was not answered in time, and was ended."""
    CANCELLED = "cancelled"
    """The client cancelled the operation, or its job was cancelled."""
    CHECKSUM_MISMATCH = "checksum_mismatch"
    """Bytes differ from their checksum: a transfer or a memory failed, or arrays were changed after
    the call. Nothing was used: try again.
    """
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    """A file of a checkpoint is not what was saved; the message names it. Nothing was loaded: copy
    the checkpoint again, or save another.
    """
    RESULT_GONE = "result_gone"
    """The result was acknowledged or dropped before. Use the answer you had."""
    UNAVAILABLE = "unavailable"
    """The service or a part of it does not answer now. Nothing is lost: try again."""
    INTERNAL = "internal"
    """A bug of the service; its log has the cause. Please report it."""


RETRYABLE = frozenset(
    {
        ErrorCode.QUEUE_FULL,
        ErrorCode.STAGING_FULL,
        ErrorCode.UNAVAILABLE,
        ErrorCode.NO_ROOM,
        ErrorCode.DISK_FULL,
        ErrorCode.CHECKSUM_MISMATCH,
    }
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


def bad_request(message: str, **facts: object) -> PlexError:
    """Return a `bad_request`."""
    return PlexError(ErrorCode.BAD_REQUEST, message, **facts)


def bad_batch(message: str, **facts: object) -> PlexError:
    """Return a `bad_batch`."""
    return PlexError(ErrorCode.BAD_BATCH, message, **facts)


def not_found(message: str, **facts: object) -> PlexError:
    """Return a `not_found`."""
    return PlexError(ErrorCode.NOT_FOUND, message, **facts)


def queue_full(message: str, **facts: object) -> PlexError:
    """Return a `queue_full`."""
    return PlexError(ErrorCode.QUEUE_FULL, message, **facts)


def payload_too_large(message: str, **facts: object) -> PlexError:
    """Return a `payload_too_large`."""
    return PlexError(ErrorCode.PAYLOAD_TOO_LARGE, message, **facts)


def unavailable(message: str, **facts: object) -> PlexError:
    """Return an `unavailable`."""
    return PlexError(ErrorCode.UNAVAILABLE, message, **facts)


def internal(message: str, **facts: object) -> PlexError:
    """Return an `internal`."""
    return PlexError(ErrorCode.INTERNAL, message, **facts)

"""Results: the replies of ranks merged into one, kept until acknowledged, and who waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from plexclient.wire.v1 import common_pb2, operations_pb2, worker_pb2
from plexsvc.errors import ErrorCode
from plexsvc.ids import OperationId
from plexsvc.scheduler.ledger.waiters import Waiters

Result = operations_pb2.OperationResult

TOKEN_BYTES: Final = 4
"""Bytes of one packed token id."""

TELLING: Final = (
    ErrorCode.WORKER_DIED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.CANCELLED,
    ErrorCode.INTERNAL,
)
"""Codes that say less, least first: what a rank saw when another one's failure reached it."""


def merge(operation_id: bytes, replies: Sequence[worker_pb2.ExecuteReply]) -> Result:
    """Return one result for the replies of all ranks, in rank order.

    All applied: shards in rank order; metrics come from the one rank that reports them (they are
    sums over all ranks already). Any error: the most telling one, the lowest rank's among equals.
    """
    if len(replies) == 1:
        return replies[0].result
    failed = [reply.result for reply in replies if reply.result.HasField("error")]
    if failed:
        return min(failed, key=lambda result: _vagueness(result.error))
    merged = Result(operation_id=operation_id)
    merged.state = operations_pb2.OPERATION_STATE_APPLIED
    for reply in replies:
        merged.shards.extend(reply.result.shards)
        merged.texts.update(reply.result.texts)
        merged.weight_version = max(merged.weight_version, reply.result.weight_version)
        merged.metrics.update(reply.result.metrics)
    return merged


def size_of(operation: operations_pb2.Operation, result: Result) -> tuple[int, int]:
    """Return how many tokens an operation read and made, and how many bytes it moved.

    The bytes are of arrays that were sent and returned, of versions and of checkpoints.
    """
    tokens = num_tokens(operation.payload) + int(result.metrics.get("generated_tokens", 0))
    if operation.HasField("generate"):
        tokens += sum(len(prompt.token_ids) for prompt in operation.generate.prompts)
    nbytes = int(result.metrics.get("nbytes", 0))
    for payload in (operation.payload, *(shard.payload for shard in result.shards)):
        nbytes += sum(one.nbytes for one in _arrays(payload))
    return tokens, nbytes


def num_tokens(payload: common_pb2.Payload) -> int:
    """Return the length of the packed `tokens` array, 0 without one."""
    return next((s.nbytes // TOKEN_BYTES for s in _arrays(payload) if s.name == "tokens"), 0)


def _arrays(payload: common_pb2.Payload) -> Sequence[common_pb2.TensorSpec]:
    return payload.staged.tensors if payload.HasField("staged") else payload.inline.tensors


def digest_of(replies: Sequence[worker_pb2.ExecuteReply]) -> str:
    """Return the ranks' digests as one hexadecimal string."""
    return "-".join(reply.digest.hex() for reply in replies if reply.digest)[:128]


class ResultBook(Waiters[OperationId, Result]):
    """Answers by operation id, at most `max_bytes` of them, and the futures that wait for one."""

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._kept: OrderedDict[OperationId, tuple[Result, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, operation_id: OperationId) -> Result | None:
        """Return a kept answer."""
        kept = self._kept.get(operation_id)
        return None if kept is None else kept[0]

    def keep(self, operation_id: OperationId, result: Result) -> None:
        """Keep an answer for those who ask again; the oldest beyond the bound are dropped."""
        size = result.ByteSize()
        self._kept[operation_id] = (result, size)
        self._bytes += size
        # The newest stays, however large: its client has not had it yet.
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def drop(self, operation_id: OperationId) -> Result | None:
        """Forget an answer and return it."""
        kept = self._kept.pop(operation_id, None)
        if kept is None:
            return None
        self._bytes -= kept[1]
        return kept[0]


def staged_ids(result: Result) -> list[bytes]:
    """Return the staging ids of a result's shards."""
    return [
        shard.payload.staged.staging_id
        for shard in result.shards
        if shard.payload.WhichOneof("form") == "staged"
    ]


def _vagueness(error: common_pb2.Error) -> int:
    return len(TELLING) - TELLING.index(ErrorCode(error.code)) if error.code in TELLING else 0

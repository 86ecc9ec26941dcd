"""Batches, plans and operations for tests of training ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plexclient.wire import tensors
from plexclient.wire.v1 import operations_pb2, worker_pb2

Arrays = Mapping[str, np.ndarray]


def random_batch(
    seed: int, lengths: Sequence[int] = (5, 9, 3, 7), *, vocab: int = 51
) -> dict[str, np.ndarray]:
    """Return a packed batch with the inputs of every built-in loss.

    Token 0, the models' padding token, is a target only: as input it has a test of its own.
    """
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    return {
        "tokens": rng.integers(1, vocab, total).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
        "target_tokens": rng.integers(0, vocab, total).astype(np.int32),
        "weights": rng.uniform(0.5, 1.5, total).astype(np.float32) / total,
        "logprobs": rng.normal(-4, 0.3, total).astype(np.float32),
        "advantages": (rng.normal(0, 1, total) / total).astype(np.float32),
        "mask": (rng.uniform(0, 1, total) > 0.2).astype(np.float32),
        "returns": rng.normal(0, 1, total).astype(np.float32),
    }


def plan(*ranks: Sequence[Sequence[int]]) -> operations_pb2.DispatchPlan:
    """Return a plan: for each data-parallel rank its micro-batches of sequence indices."""
    return operations_pb2.DispatchPlan(
        version=1,
        ranks=[
            operations_pb2.RankPlan(
                micro_batches=[operations_pb2.MicroBatch(sequences=mb) for mb in micro_batches]
            )
            for micro_batches in ranks
        ],
    )


def operation(
    seq: int,
    kind: str,
    arrays: Arrays | None = None,
    *,
    split: operations_pb2.DispatchPlan | None = None,
    **fields: Any,
) -> operations_pb2.Operation:
    """Return operation `kind` with number `seq`; its id says both."""
    body: dict[str, Any] = {kind: fields}
    made = operations_pb2.Operation(
        operation_id=f"{seq:06d}-{kind}".ljust(16, "-")[:16].encode(), seq=seq, **body
    )
    if arrays is not None:
        made.payload.inline.CopyFrom(tensors.encode(arrays))
    if split is not None:
        made.plan.CopyFrom(split)
    return made


def answered_tokens(
    replies: Sequence[worker_pb2.ExecuteReply], batch: Arrays, name: str = "logprobs"
) -> np.ndarray:
    """Return the per-token array the ranks answered, back in the batch's order."""
    bounds = batch["cu_seqlens"]
    out = np.full(batch["tokens"].size, np.nan, np.float32)
    for reply in replies:
        for shard in reply.result.shards:
            values, at = tensors.decode(shard.payload.inline)[name], 0
            for sequence in shard.sequences:
                low, high = int(bounds[sequence]), int(bounds[sequence + 1])
                out[low:high] = values[at : at + high - low]
                at += high - low
            assert at == values.size
    return out


def errors(replies: Sequence[worker_pb2.ExecuteReply]) -> list[str]:
    """Return each reply's error code, empty for none."""
    return [reply.result.error.code for reply in replies]

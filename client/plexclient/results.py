"""Results of operations: metrics, times, and shards put back into the order of the batch."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plexclient.batch import FloatArray, IntArray
from plexclient.errors import PlexError, internal
from plexclient.ids import show
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import operations_pb2

FAILED_STATES = frozenset(
    {operations_pb2.OPERATION_STATE_FAILED, operations_pb2.OPERATION_STATE_REFUSED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Microseconds an operation spent waiting, in context switches made for it, and running."""

    queued_us: int = 0
    switch_us: int = 0
    run_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What an operation answered; `answer["loss"]` and `dict(answer)` read its metrics."""

    operation_id: bytes
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    weight_version: int = 0
    times: Times = field(default_factory=Times)

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def keys(self) -> KeysView[str]:
        """Return the names of the metrics."""
        return self.metrics.keys()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardResult(Answer):
    """`logprobs[T]`: float32 logprob of each target, in the batch's packed order."""

    logprobs: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueResult(Answer):
    """`values[T]`: the critic's float32 value at each token, in the batch's packed order."""

    values: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossResult(Answer):
    """Metrics of a loss; `logprobs[T]` when `return_logprobs` was asked."""

    logprobs: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Per-token arrays of some sequences of a batch, laid end to end in this order."""

    sequences: tuple[int, ...]
    arrays: Mapping[str, npt.NDArray[np.generic]]


def check(result: operations_pb2.OperationResult) -> operations_pb2.OperationResult:
    """Return `result` unless the operation was refused or failed.

    Raises:
        PlexError: the operation's error.
    """
    if result.HasField("error"):
        raise from_wire(result.error)
    if result.state in FAILED_STATES:
        raise internal(
            f"{show(result.operation_id)} failed and the service gave no reason; look at its log"
        )
    return result


def facts_of(result: operations_pb2.OperationResult) -> Answer:
    """Return the part of an answer that every operation has."""
    return Answer(
        operation_id=result.operation_id,
        metrics=dict(result.metrics),
        texts=dict(result.texts),
        weight_version=result.weight_version,
        times=Times(
            queued_us=result.times.queued_us,
            switch_us=result.times.switch_us,
            run_us=result.times.run_us,
        ),
    )


def gather(shards: Iterable[Shard], *, cu_seqlens: IntArray, name: str) -> FloatArray:
    """Return array `name` of all shards as one float32 `[T]`, in the batch's packed order.

    Raises:
        PlexError: `internal` when shards miss, repeat or misfit a sequence, or lack the array.
    """
    out = np.empty(int(cu_seqlens[-1]), np.float32)
    seen = np.zeros(cu_seqlens.size - 1, np.int64)
    for shard in shards:
        values = _array(shard, name=name, num_sequences=seen.size)
        indices = np.array(shard.sequences, np.int64)
        lengths = cu_seqlens[indices + 1] - cu_seqlens[indices]
        if values.shape != (int(lengths.sum()),):
            raise _misfit(f"{name!r} of shape {values.shape} for {int(lengths.sum())} tokens")
        # Cut at every end but the last: the last part is what is left.
        for index, part in zip(indices, np.split(values, np.cumsum(lengths)[:-1]), strict=False):
            out[cu_seqlens[index] : cu_seqlens[index + 1]] = part
        np.add.at(seen, indices, 1)
    if (seen != 1).any():
        where = int(np.flatnonzero(seen != 1)[0])
        raise _misfit(f"sequence {where} {seen[where]} times")
    out.setflags(write=False)
    return out


def _array(shard: Shard, *, name: str, num_sequences: int) -> npt.NDArray[np.generic]:
    if name not in shard.arrays:
        raise _misfit(f"arrays {', '.join(shard.arrays) or 'none'} where {name!r} was due")
    if any(index >= num_sequences for index in shard.sequences):
        raise _misfit(f"sequence {max(shard.sequences)} of a batch of {num_sequences}")
    return shard.arrays[name]


def _misfit(found: str) -> PlexError:
    return internal(
        f"the answer's shards do not fit the batch: they hold {found}; report it with the "
        "operation's id"
    )

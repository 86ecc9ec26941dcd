"""Results of a rank's operation: metrics, arrays as shards inline or staged, a digest of both."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One rank's answer: empty on ranks that own no results."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    sequences: Sequence[int] = ()
    weight_version: int = 0


class Staging(Protocol):
    """Where arrays too large for a message are left for the router to fetch."""

    def create_staged(
        self, specs: Sequence[common_pb2.TensorSpec], nbytes: int
    ) -> tuple[bytes, memoryview]:
        """Return a new staging id and writable memory."""
        ...

    def seal_staged(self, staging_id: bytes) -> None:
        """Finish it; others may read it from now on."""
        ...


def digest(answer: Answer) -> bytes:
    """Return xxh3-128 of metrics and arrays, by name: equal when an operation is replayed."""
    state = xxhash.xxh3_128()
    for name in sorted(answer.metrics):
        state.update(name.encode() + struct.pack("<d", answer.metrics[name]))
    for name in sorted(answer.arrays):
        state.update(name.encode())
        state.update(np.ascontiguousarray(answer.arrays[name]).data)
    return state.digest()


def to_wire(
    answer: Answer, *, operation_id: bytes, node_id: str, staging: Staging | None
) -> operations_pb2.OperationResult:
    """Return the wire form; arrays beyond 64 KiB go through `staging` when there is one.

    Raises:
        PlexError: as `Staging.create_staged`.
    """
    result = operations_pb2.OperationResult(
        operation_id=operation_id,
        state=operations_pb2.OPERATION_STATE_APPLIED,
        metrics=answer.metrics,
        weight_version=answer.weight_version,
    )
    if answer.arrays:
        payload = _payload(answer.arrays, node_id=node_id, staging=staging)
        result.shards.add(sequences=answer.sequences, payload=payload)
    return result


def _payload(
    arrays: Mapping[str, npt.NDArray[Any]], *, node_id: str, staging: Staging | None
) -> common_pb2.Payload:
    specs, nbytes = tensors.layout(arrays)
    if nbytes <= tensors.INLINE_PAYLOAD_BYTES or staging is None:
        return common_pb2.Payload(inline=tensors.encode(arrays))
    staging_id, memory = staging.create_staged(specs, nbytes)
    for spec, array in zip(specs, arrays.values(), strict=True):
        end = spec.offset + spec.nbytes
        memory[spec.offset : end] = np.ascontiguousarray(array).data.cast("B")
    staging.seal_staged(staging_id)
    return common_pb2.Payload(
        staged=common_pb2.StagedBundle(
            tensors=specs, nbytes=nbytes, staging_id=staging_id, node_ids=[node_id]
        )
    )

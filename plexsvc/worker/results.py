"""Results of a rank's operation: metrics, an array as a shard inline or staged, a digest of both.

Staging memory for the array is reserved before the operation changes anything.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2
from plexsvc.errors import PlexError
from plexsvc.log import Log

log = Log(__name__)


class ResultStaging(Protocol):
    """Where arrays too large for a message are left for the router to fetch."""

    def create_staged(
        self, specs: Sequence[common_pb2.TensorSpec], nbytes: int
    ) -> tuple[bytes, memoryview]:
        """Return a new staging id and writable memory."""

    def seal_staged(self, staging_id: bytes) -> None:
        """Finish it; others may read it from now on."""

    def drop_staged(self, staging_id: bytes) -> None:
        """Give its memory back. Safe to repeat."""


class Room:
    """Where an answer's array will go: into the reply, or into staging memory reserved for it."""

    def __init__(self, name: str, *, num_tokens: int, staging: ResultStaging | None) -> None:
        """Reserve room for float32 `name[num_tokens]`.

        Raises:
            PlexError: as `Staging.create_staged`.
        """
        self.name = name
        self._staging = staging
        self._id = b""
        self._specs, nbytes = tensors.layout({name: np.broadcast_to(np.float32(0), num_tokens)})
        if nbytes > tensors.INLINE_PAYLOAD_BYTES and staging is not None:
            self._id, self._memory = staging.create_staged(self._specs, nbytes)

    def fill(self, values: npt.NDArray[np.float32], *, node_id: str) -> common_pb2.Payload:
        """Return the payload that holds `values`."""
        (spec,) = self._specs
        assert values.shape == tuple(spec.shape), (self.name, values.shape, spec)
        if not self._id:
            return tensors.inline({self.name: values})
        assert self._staging is not None, self.name
        self._memory[: spec.nbytes] = values.data.cast("B")
        checksum = tensors.checksum([self._memory])
        self._staging.seal_staged(self._id)
        staged = common_pb2.StagedBundle(
            tensors=self._specs, nbytes=len(self._memory), staging_id=self._id, node_ids=[node_id]
        )
        self._id = b""  # it is the reader's now
        return common_pb2.Payload(staged=staged, checksum=checksum)

    def drop(self) -> None:
        """Give the staging memory back, unless an answer fills it."""
        if self._id and self._staging is not None:
            give_back(self._staging, self._id)


def give_back(staging: ResultStaging, staging_id: bytes) -> None:
    """Drop a bundle, or log why not: it goes with this rank or its job at the latest."""
    try:
        staging.drop_staged(staging_id)
    except PlexError as error:
        log.warning("staging memory not given back", staging_id=staging_id, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """One rank's answer: empty on ranks that own no results."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    name: str = ""
    """Of the array that is answered; empty for none."""
    values: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    sequences: Sequence[int] = ()
    weight_version: int = 0
    payload: common_pb2.Payload | None = None
    """`values` on the wire."""


def digest(answer: RankAnswer) -> bytes:
    """Return xxh3-128 of metrics and values, by name: equal when an operation is replayed."""
    state = xxhash.xxh3_128()
    for name in sorted(answer.metrics):
        state.update(name.encode() + struct.pack("<d", answer.metrics[name]))
    if answer.name:
        state.update(answer.name.encode())
        state.update(answer.values.data)
    return state.digest()


def to_wire(answer: RankAnswer, *, operation_id: bytes) -> operations_pb2.OperationResult:
    """Return the result of an operation that was applied."""
    result = operations_pb2.OperationResult(
        operation_id=operation_id,
        state=operations_pb2.OPERATION_STATE_APPLIED,
        metrics=answer.metrics,
        weight_version=answer.weight_version,
    )
    if answer.payload is not None:
        result.shards.add(sequences=answer.sequences, payload=answer.payload)
    return result

"""Dispatch by parallel layout: which rank computes which sequences, who needs bytes, who answers.

Everything here is a pure function of lengths and degrees, and the cut of a batch carries a version:
a plan that was recorded with an operation is made again, bit for bit, years later or not at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import ErrorCode, PlexError

PLAN_VERSION: Final = 1

Bins = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees of parallelism; ranks count tensor first, then context, data, pipeline last."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1

    @property
    def world_size(self) -> int:
        """Return how many ranks there are."""
        return self.tp * self.cp * self.dp * self.pp

    def rank(self, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """Return the global rank at these coordinates."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a global rank."""
        return rank // (self.tp * self.cp * self.dp)


def plan(
    lengths: Sequence[int], *, dp: int, micro_batch_tokens: int, version: int = PLAN_VERSION
) -> operations_pb2.DispatchPlan:
    """Cut a batch of `lengths` over `dp` ranks and micro-batches. `O(n log n)`.

    Every sequence is in exactly one micro-batch; every rank has equally many micro-batches, at
    least one; a micro-batch holds at most `micro_batch_tokens` tokens unless it is a single longer
    sequence. Micro-batches are empty only on a rank with fewer sequences than micro-batches.

    Raises:
        PlexError: `bad_request` for a version this build does not know.
    """
    if version != PLAN_VERSION:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"dispatch plan version {version} was asked for; this build makes {PLAN_VERSION}",
        )
    shares = _balance(lengths, dp=dp)
    cuts = [_cut(share, lengths=lengths, limit=micro_batch_tokens) for share in shares]
    count = max(1, *(len(cut) for cut in cuts))
    return operations_pb2.DispatchPlan(
        version=version,
        lengths=lengths,
        ranks=[
            operations_pb2.RankPlan(
                micro_batches=[
                    operations_pb2.MicroBatch(sequences=sequences)
                    for sequences in _spread(cut, lengths=lengths, count=count)
                ]
            )
            for cut in cuts
        ],
    )


def answering_ranks(degrees: Degrees) -> list[int]:
    """Return the global ranks that answer a result shard, in data-parallel order.

    One copy a tensor-parallel group: its first rank, of the last pipeline stage.
    """
    return [degrees.rank(dp=dp, pp=degrees.pp - 1) for dp in range(degrees.dp)]


def payload_nodes(degrees: Degrees, *, node_of_rank: Mapping[int, str]) -> list[str]:
    """Return the nodes that need a batch's bytes, each once, in rank order.

    Tokens go into the first pipeline stage and targets into the last; a node that holds only middle
    stages works from the plan's lengths. Ranks of one node share one copy.
    """
    needed: dict[str, None] = {}
    for rank, node in sorted(node_of_rank.items()):
        if degrees.stage(rank) in {0, degrees.pp - 1}:
            needed[node] = None
    return list(needed)


def _balance(lengths: Sequence[int], *, dp: int) -> Bins:
    """Give each sequence, longest first, to the rank with the fewest tokens, then the lowest."""
    shares: Bins = [[] for _ in range(dp)]
    loads = [(0, rank) for rank in range(dp)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = loads[0]
        shares[rank].append(index)
        heapq.heapreplace(loads, (load + lengths[index], rank))
    return shares


def _cut(share: Sequence[int], *, lengths: Sequence[int], limit: int) -> Bins:
    """Fill micro-batches in the given order. A larger limit never makes more of them."""
    cut: Bins = []
    room = 0
    for index in share:
        if not cut or lengths[index] > room:
            cut.append([])
            room = limit
        cut[-1].append(index)
        room -= lengths[index]
    return cut


def _spread(cut: Bins, *, lengths: Sequence[int], count: int) -> Bins:
    """Split the fullest micro-batches in two until there are `count`; then add empty ones."""
    heap = [(-sum(lengths[i] for i in part), n, part) for n, part in enumerate(cut)]
    done = [part for _, _, part in heap if len(part) < 2]
    heap = [entry for entry in heap if len(entry[2]) >= 2]
    heapq.heapify(heap)
    serial = len(cut)
    while heap and len(heap) + len(done) < count:
        _, _, part = heapq.heappop(heap)
        for half in (part[0::2], part[1::2]):
            if len(half) < 2:
                done.append(half)
            else:
                heapq.heappush(heap, (-sum(lengths[i] for i in half), serial, half))
            serial += 1
    parts = done + [part for _, _, part in heap]
    parts.sort(key=min)
    return parts + [[] for _ in range(count - len(parts))]

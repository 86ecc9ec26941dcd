"""Dispatch by parallel layout: which data-parallel replica computes which sequences of a batch.

A pure function of the lengths and the degree; the cut carries a version: a plan that was recorded
with an operation is made again, bit for bit, years later or not at all. Tensor- and pipeline-
parallel ranks of one data-parallel rank share its part of the plan; ranks of one node share one
copy of the bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import bad_request

PLAN_VERSION: Final = 1

Bins = list[list[int]]


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
        raise bad_request(
            f"dispatch plan version {version} was asked for; this build makes {PLAN_VERSION}"
        )
    shares = _balance(lengths, dp=dp)
    cuts = [_cut(share, lengths=lengths, limit=micro_batch_tokens) for share in shares]
    # All ranks take part in the collectives of every micro-batch, so all have as many.
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


def _balance(lengths: Sequence[int], *, dp: int) -> Bins:
    """Give each sequence, longest first, to the rank with the fewest tokens, then the lowest."""
    shares: Bins = [[] for _ in range(dp)]
    loads = [(0, rank) for rank in range(dp)]
    # Ties go by the index: the plan is made again from the lengths alone.
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

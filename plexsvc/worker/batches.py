"""Micro-batches of one rank: the cut of a packed batch that its dispatch plan describes."""

# T = packed tokens, B = sequences.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plexclient.batch import TOKEN_ID_ARRAYS
from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import bad_request
from plexsvc.worker.backends.base import DataShard, MicroBatch

Arrays = Mapping[str, npt.NDArray[Any]]


def split(
    arrays: Arrays,
    plan: operations_pb2.DispatchPlan,
    *,
    names: Sequence[str],
    shard: DataShard,
) -> list[MicroBatch]:
    """Return the micro-batches the plan gives this data-parallel rank, with the arrays `names`.

    Raises:
        PlexError: `bad_request` when the plan does not fit the batch or the layout.
    """
    num_sequences = int(arrays["cu_seqlens"].size) - 1
    _check_plan(plan, num_sequences=num_sequences, shard=shard)
    mine = plan.ranks[shard.dp_rank].micro_batches
    return [
        _micro_batch(arrays, tuple(mb.sequences), names=names, multiple=shard.token_multiple)
        for mb in mine
    ]


def _check_plan(plan: operations_pb2.DispatchPlan, *, num_sequences: int, shard: DataShard) -> None:
    counts = {len(rank.micro_batches) for rank in plan.ranks}
    given = sorted(s for rank in plan.ranks for mb in rank.micro_batches for s in mb.sequences)
    if (
        len(plan.ranks) == shard.dp_size
        and len(counts) == 1
        and min(counts) > 0
        and given == list(range(num_sequences))
    ):
        return
    raise bad_request(
        f"the dispatch plan has {len(plan.ranks)} ranks with {sorted(counts)} micro-batches of "
        f"{len(given)} sequences; the batch has {num_sequences} sequences for {shard.dp_size} "
        "data-parallel ranks with equally many micro-batches"
    )


def _micro_batch(
    arrays: Arrays, sequences: tuple[int, ...], *, names: Sequence[str], multiple: int
) -> MicroBatch:
    bounds = arrays["cu_seqlens"]
    lengths = [int(bounds[s + 1] - bounds[s]) for s in sequences]
    # Padding is a sequence of its own, so no real token attends to it. A rank without sequences
    # computes one of padding alone, because its peers wait for it in their collectives.
    padded = -sum(lengths) % multiple or (0 if lengths else multiple)
    index_T = np.concatenate(
        [np.arange(bounds[s], bounds[s + 1]) for s in sequences] or [np.zeros(0, np.int64)]
    )
    cu_seqlens = np.cumsum([0, *lengths, *([padded] if padded else [])])
    bounds_B = torch.tensor(cu_seqlens, dtype=torch.int32)
    return MicroBatch(
        tokens=_take(arrays["tokens"], index_T, padded=padded, dtype=torch.int64),
        cu_seqlens=bounds_B,
        arrays={
            name: _take(
                arrays[name],
                index_T,
                padded=padded,
                dtype=torch.int64 if name in TOKEN_ID_ARRAYS else torch.float32,
            )
            for name in names
        }
        | {"cu_seqlens": bounds_B},
        sequences=sequences,
        padded_tokens=padded,
    )


def _take(
    array: npt.NDArray[Any],
    index_T: npt.NDArray[np.int64],
    *,
    padded: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return `array[index]` followed by `padded` zeros."""
    out = torch.zeros(index_T.size + padded, dtype=dtype)
    out[: index_T.size] = torch.from_numpy(array[index_T])
    return out

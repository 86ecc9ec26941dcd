"""Shards go back into the batch's order, whatever ranks took which sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.batch import pack_lengths
from plexclient.errors import PlexError
from plexclient.results import Shard, gather


@st.composite
def sharded(draw: st.DrawFn) -> tuple[np.ndarray, list[list[int]]]:
    """Return (cu_seqlens, the sequences of each shard)."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    order = draw(st.permutations(range(len(lengths))))
    cuts = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    parts = np.split(np.array(order), cuts)
    return pack_lengths(lengths), [part.tolist() for part in parts]


def shard(sequences: list[int], values: np.ndarray, cu_seqlens: np.ndarray) -> Shard:
    parts = [values[cu_seqlens[i] : cu_seqlens[i + 1]] for i in sequences]
    return Shard(
        sequences=tuple(sequences), arrays={"logprobs": np.concatenate([*parts, values[:0]])}
    )


@given(sharded())
def test_any_split_of_any_order_is_put_back(case: tuple[np.ndarray, list[list[int]]]) -> None:
    cu_seqlens, split = case
    values = np.arange(cu_seqlens[-1], dtype=np.float32)
    shards = [shard(sequences, values, cu_seqlens) for sequences in split]
    assert gather(shards, cu_seqlens=cu_seqlens, name="logprobs").tolist() == values.tolist()


BOUNDS = pack_lengths([2, 1])
VALUES = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("shards", "found"),
    [
        ([], "sequence 0 0 times"),
        ([shard([0], VALUES, BOUNDS)], "sequence 1 0 times"),
        ([shard([0, 1], VALUES, BOUNDS), shard([1], VALUES, BOUNDS)], "sequence 1 2 times"),
        ([Shard(sequences=(0, 1), arrays={"logprobs": VALUES[:2]})], "for 3 tokens"),
        ([Shard(sequences=(0, 2), arrays={"logprobs": VALUES})], "sequence 2 of a batch of 2"),
        ([Shard(sequences=(0, 1), arrays={"values": VALUES})], "'logprobs' was due"),
    ],
)
def test_shards_that_do_not_fit_the_batch_are_refused(shards: list[Shard], found: str) -> None:
    with pytest.raises(PlexError, match=found):
        gather(shards, cu_seqlens=BOUNDS, name="logprobs")

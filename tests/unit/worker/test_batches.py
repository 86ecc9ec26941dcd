"""Cutting a packed batch into micro-batches, with Hypothesis over lengths and plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker import batches
from plexsvc.worker.backends.base import DataShard, ModelFacts
from tests.rigs.worker_batches import plan, random_batch

FACTS = ModelFacts(vocab_size=51, max_sequence_length=16)


def shard(rank: int = 0, size: int = 1, multiple: int = 1) -> DataShard:
    return DataShard(dp_rank=rank, dp_size=size, owns_results=True, token_multiple=multiple)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    multiple=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_micro_batches_hold_every_token_once_and_padding_weighs_nothing(
    lengths: list[int], multiple: int, data: st.DataObject
) -> None:
    batch = random_batch(0, lengths)
    homes = [data.draw(st.integers(0, 3)) for _ in lengths]
    groups = [[s for s, home in enumerate(homes) if home == g] for g in range(4)]
    split = plan(groups[:2], groups[2:])
    seen: list[int] = []
    for rank in range(2):
        found = batches.split(
            batch, split, names=("weights", "target_tokens"), shard=shard(rank, 2, multiple)
        )
        assert len(found) == 2
        for micro in found:
            total = int(micro.tokens.shape[0])
            assert total > 0
            assert total % multiple == 0
            assert int(micro.cu_seqlens[-1]) == total
            assert not micro.arrays["weights"][micro.num_tokens :].any()
            bounds = micro.cu_seqlens.tolist()
            for at, sequence in enumerate(micro.sequences):
                low, high = batch["cu_seqlens"][sequence : sequence + 2]
                here = slice(bounds[at], bounds[at + 1])
                assert np.array_equal(micro.tokens[here].numpy(), batch["tokens"][low:high])
                assert np.array_equal(
                    micro.arrays["weights"][here].numpy(), batch["weights"][low:high]
                )
            seen.extend(micro.sequences)
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize(
    "split",
    [
        plan([[0, 1, 2, 3]]),
        plan([[0, 1]], [[2]]),
        plan([[0, 1]], [[2, 3, 3]]),
        plan([[0, 1], []], [[2, 3]]),
        plan([[0, 1]], [[2, 4]]),
    ],
    ids=["one rank for two", "missing", "twice", "uneven micro-batches", "out of range"],
)
def test_a_plan_that_does_not_fit_is_refused(split: operations_pb2.DispatchPlan) -> None:
    with pytest.raises(PlexError) as caught:
        batches.split(random_batch(0), split, names=(), shard=shard(0, 2))
    assert caught.value.code == ErrorCode.BAD_REQUEST

"""The cut of a batch over ranks and micro-batches: exact, balanced, repeatable, bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.layout import plan

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=200)
DP = st.integers(1, 8)
LIMIT = st.integers(1, 8000)


def rows(cut: operations_pb2.DispatchPlan) -> list[list[list[int]]]:
    """Return the plan as rank -> micro-batch -> sequence indices."""
    return [[list(mb.sequences) for mb in rank.micro_batches] for rank in cut.ranks]


def tokens_of_ranks(cut: operations_pb2.DispatchPlan, lengths: list[int]) -> list[int]:
    return [sum(lengths[i] for mb in rank for i in mb) for rank in rows(cut)]


@given(LENGTHS, DP, LIMIT)
def test_every_sequence_is_in_exactly_one_micro_batch(
    lengths: list[int], dp: int, limit: int
) -> None:
    cut = plan(lengths, dp=dp, micro_batch_tokens=limit)
    assert sorted(i for rank in rows(cut) for mb in rank for i in mb) == list(range(len(lengths)))
    assert list(cut.lengths) == lengths


@given(LENGTHS, DP, LIMIT)
def test_micro_batches_are_equally_many_and_within_the_limit(
    lengths: list[int], dp: int, limit: int
) -> None:
    cut = rows(plan(lengths, dp=dp, micro_batch_tokens=limit))
    assert len(cut) == dp
    assert len({len(rank) for rank in cut}) == 1
    assert len(cut[0]) >= 1
    for micro_batch in (mb for rank in cut for mb in rank):
        assert len(micro_batch) <= 1 or sum(lengths[i] for i in micro_batch) <= limit


@given(LENGTHS, DP, LIMIT)
def test_the_same_lengths_give_the_same_bytes(lengths: list[int], dp: int, limit: int) -> None:
    first = plan(lengths, dp=dp, micro_batch_tokens=limit)
    again = plan(np.array(lengths).tolist(), dp=dp, micro_batch_tokens=limit)
    assert first.SerializeToString() == again.SerializeToString()


@given(LENGTHS, DP, LIMIT, LIMIT)
def test_a_larger_limit_never_makes_more_micro_batches(
    lengths: list[int], dp: int, one: int, other: int
) -> None:
    small, large = sorted((one, other))
    many = rows(plan(lengths, dp=dp, micro_batch_tokens=small))[0]
    few = rows(plan(lengths, dp=dp, micro_batch_tokens=large))[0]
    assert len(few) <= len(many)


@given(LENGTHS, DP)
def test_no_rank_exceeds_the_mean_by_more_than_one_sequence(lengths: list[int], dp: int) -> None:
    loads = tokens_of_ranks(plan(lengths, dp=dp, micro_batch_tokens=4096), lengths)
    assert max(loads) <= sum(lengths) / dp + max(lengths)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 8]))
def test_lognormal_lengths_are_balanced_to_five_percent(seed: int, dp: int) -> None:
    dice = np.random.default_rng(seed)
    lengths = np.clip(dice.lognormal(6.0, 0.8, size=256), 8, 4096).astype(int).tolist()
    loads = tokens_of_ranks(plan(lengths, dp=dp, micro_batch_tokens=8192), lengths)
    assert max(loads) / (sum(loads) / dp) <= 1.05


@given(LENGTHS, DP)
def test_no_micro_batch_is_empty_when_there_is_a_sequence_for_each(
    lengths: list[int], dp: int
) -> None:
    cut = rows(plan(lengths, dp=dp, micro_batch_tokens=4096))
    for rank in cut:
        if sum(len(mb) for mb in rank) >= len(rank):
            assert all(rank)


def test_version_one_of_a_small_batch_stays_what_it_is() -> None:
    cut = plan([5, 1, 4, 2, 3], dp=2, micro_batch_tokens=6)
    assert rows(cut) == [[[0], [3, 1]], [[2], [4]]]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(PlexError) as refusal:
        plan([1], dp=1, micro_batch_tokens=8, version=2)
    assert refusal.value.code == ErrorCode.BAD_REQUEST

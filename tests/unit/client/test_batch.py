"""Batches: the shift of sequences, where per-token numbers land, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plexclient as plex


@dataclass
class FakeSample:
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: np.ndarray
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    is_plain: bool = True


def sample(prompt: list[int], tokens: list[int], logprobs: list[float]) -> FakeSample:
    return FakeSample(prompt, tokens, np.array(logprobs, np.float32))


def refused(code: str, **arrays: Any) -> plex.PlexError:
    with pytest.raises(plex.PlexError) as caught:
        plex.Batch(**arrays)
    assert caught.value.code == code
    return caught.value


def test_a_sample_without_a_prompt_has_its_numbers_on_their_own_targets() -> None:
    batch = plex.Batch.from_samples(
        [sample([], [5, 6, 7], [-1.0, -2.0, -3.0])], advantages=[[0.1, 0.2, 0.3]]
    )
    found = {name: array.tolist() for name, array in batch.arrays().items()}
    assert found["target_tokens"] == [6, 7]
    assert (found["logprobs"], found["mask"]) == ([-2, -3], [1, 1])
    assert found["advantages"] == pytest.approx([0.2, 0.3])


def test_samples_become_shifted_sequences_with_numbers_on_the_generated_targets() -> None:
    batch = plex.Batch.from_samples(
        [sample([1, 2, 3], [4, 5], [-0.5, -0.25]), sample([6], [7], [-1.0])], advantages=[2.0, -1.0]
    )
    assert batch.tokens.tolist() == [1, 2, 3, 4, 6]
    assert batch.target_tokens.tolist() == [2, 3, 4, 5, 7]
    assert batch.cu_seqlens.tolist() == [0, 4, 5]
    assert batch.mask.tolist() == [0, 0, 1, 1, 1]
    assert batch.logprobs.tolist() == [0, 0, -0.5, -0.25, -1.0]
    assert batch.advantages.tolist() == [0, 0, 2.0, 2.0, -1.0]


def drawn(**how: Any) -> FakeSample:
    return FakeSample([1, 2], [3], np.array([-0.5], np.float32), **how)


def test_a_batch_takes_its_samples_temperature_along() -> None:
    samples = [drawn(temperature=0.7), drawn(temperature=0.7)]
    batch = plex.Batch.from_samples(samples, advantages=[1.0, 1.0])
    assert batch.temperature == 0.7
    assert batch.replace(advantages=np.zeros(4)).temperature == 0.7
    assert "temperature" not in batch.arrays()
    assert plex.Batch.from_sequences([[1, 2]]).temperature == 1.0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"temperature": 0.0}, "temperature=0,"),
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 5}, "top_k=5"),
        ({"is_plain": False}, "a penalty"),
        ({"temperature": 0.7}, "temperatures 0.7, 1;"),
    ],
)
def test_samples_whose_logprobs_would_give_wrong_ratios_are_refused(
    how: dict[str, float], words: str
) -> None:
    with pytest.raises(plex.PlexError) as caught:
        plex.Batch.from_samples([drawn(), drawn(**how)], advantages=[1.0, 1.0])
    assert caught.value.code == "bad_batch"
    assert words in caught.value.message


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_temperature_that_nothing_can_be_divided_by_is_refused(value: float) -> None:
    refused("bad_batch", tokens=[1], cu_seqlens=[0, 1], temperature=value)


def test_advantages_may_be_given_per_token() -> None:
    batch = plex.Batch.from_samples(
        [sample([1, 2], [3, 4], [0, 0]), sample([1], [5], [0])], advantages=[[0.5, 1.5], [2.5]]
    )
    assert batch.advantages.tolist() == [0, 0.5, 1.5, 2.5]


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 6)).map(
            lambda sizes: sample(list(range(sizes[0])), list(range(sizes[1])), [-0.5] * sizes[1])
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_generated_token_is_a_counted_target_exactly_once(samples: list[FakeSample]) -> None:
    batch = plex.Batch.from_samples(samples, advantages=np.arange(len(samples)))
    arrays = batch.arrays()
    targets = batch.per_sequence(arrays["target_tokens"])
    masks = batch.per_sequence(arrays["mask"])
    for item, target, mask in zip(samples, targets, masks, strict=True):
        assert target[mask.astype(bool)].tolist() == item.tokens
    assert batch.mask.sum() == sum(len(item.tokens) for item in samples)


def test_sequences_weigh_what_comes_after_their_prompt() -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3, 4], [5, 6]], prompt_lengths=[2, 0])
    assert batch.tokens.tolist() == [1, 2, 3, 5]
    assert batch.target_tokens.tolist() == [2, 3, 4, 6]
    assert batch.weights.tolist() == [0, 1, 1, 1]


def test_texts_are_encoded_part_by_part() -> None:
    class FakeTokenizer:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

    batch = plex.Batch.from_texts([("ab", "cd")], tokenizer=FakeTokenizer())
    assert batch.target_tokens.tolist() == [ord(letter) for letter in "bcd"]
    assert batch.weights.tolist() == [0, 1, 1]


def test_arrays_cannot_change_after_the_batch_was_made() -> None:
    tokens = np.array([1, 2, 3])
    batch = plex.Batch(tokens=tokens, cu_seqlens=np.array([0, 3]))
    tokens[0] = 9
    assert batch.tokens.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        batch.tokens[0] = 9


def test_replace_checks_again_and_leaves_the_original() -> None:
    batch = plex.Batch(tokens=np.array([1, 2]), cu_seqlens=np.array([0, 2]))
    weighted = batch.replace(weights=[1, 2])
    assert weighted.weights.tolist() == [1, 2]
    assert batch.weights is None
    with pytest.raises(plex.PlexError, match="'mask' has 3 entries for 2 tokens"):
        batch.replace(mask=[1, 1, 1])


@pytest.mark.parametrize("bounds", [[], [0], [1, 3], [0, 2], [0, 4]])
def test_bounds_that_do_not_span_the_tokens_are_refused(bounds: list[int]) -> None:
    error = refused("bad_batch", tokens=[1, 2, 3], cu_seqlens=np.array(bounds, np.int32))
    assert error.facts["array"] == "cu_seqlens"
    assert "must start at 0, end at 3" in error.message


@pytest.mark.parametrize(("bounds", "where"), [([0, 2, 2, 3], "1"), ([0, 3, 2, 3], "1")])
def test_bounds_that_do_not_grow_are_refused_naming_the_sequence(
    bounds: list[int], where: str
) -> None:
    error = refused("bad_batch", tokens=[1, 2, 3], cu_seqlens=bounds)
    assert error.facts["sequence"] == where


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused_with_their_place(value: float) -> None:
    error = refused(
        "bad_batch", tokens=[1, 2, 3], cu_seqlens=[0, 1, 3], advantages=[0.0, 1.0, value]
    )
    assert error.facts == {"array": "advantages", "sequence": "1", "position": "1"}
    assert "give a finite number" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", [1.5, 2.0, 3.0]),
        ("tokens", [1, 2, -1]),
        ("tokens", [1, 2, 2**31]),
        ("tokens", [[1, 2, 3]]),
        ("weights", ["a", "b", "c"]),
        ("weights", [1.0, 2.0]),
        ("target_tokens", [1, 2]),
    ],
)
def test_arrays_of_the_wrong_kind_or_length_are_refused_by_name(name: str, value: object) -> None:
    arrays = {"tokens": [1, 2, 3], "cu_seqlens": [0, 3], name: value}
    assert refused("bad_batch", **arrays).facts["array"] == name


def test_sequences_may_be_a_matrix_or_come_one_by_one() -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    for sequences in (np.array(rows), (np.array(row) for row in rows)):
        batch = plex.Batch.from_sequences(sequences)  # type: ignore[arg-type]  # as NumPy reads it
        assert batch.target_tokens is not None
        assert batch.target_tokens.tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize("given", [[[1.5, 2, 3]], [["1", "2"]], [1, 2, 3], "123", ["123"], None])
def test_what_is_no_list_of_token_ids_is_refused_and_never_rounded(given: Any) -> None:
    with pytest.raises(plex.PlexError, match="token ids") as caught:
        plex.Batch.from_sequences(given)
    assert caught.value.code == "bad_batch"


class FakeTensor:
    """What another library's array shows: no sequence, but NumPy reads it."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array([1.0, -1.0], dtype)


def test_advantages_may_be_another_librarys_array() -> None:
    samples = [sample([1], [2], [-1.0]), sample([1], [3], [-1.0])]
    batch = plex.Batch.from_samples(samples, advantages=FakeTensor())  # type: ignore[arg-type]  # as NumPy reads it
    assert batch.advantages is not None
    assert batch.advantages.tolist() == [1.0, -1.0]


def test_a_sequence_too_short_to_predict_anything_is_refused() -> None:
    with pytest.raises(plex.PlexError, match="sequence 1 has 1 tokens"):
        plex.Batch.from_sequences([[1, 2], [3]])
    with pytest.raises(plex.PlexError, match="no sequences"):
        plex.Batch.from_sequences([])


@pytest.mark.parametrize(
    "advantages", [[1.0], [[1.0], [1.0, 2.0]], ["a", "b"], [None, {}], 5, None, "ab"]
)
def test_advantages_that_do_not_fit_the_samples_are_refused(
    advantages: Any,
) -> None:
    samples = [sample([1, 2], [3, 4], [0, 0]), sample([1], [5, 6], [0, 0])]
    with pytest.raises(plex.PlexError) as caught:
        plex.Batch.from_samples(samples, advantages=advantages)
    assert caught.value.code == "bad_batch"


def test_a_sample_without_one_logprob_a_token_is_refused() -> None:
    with pytest.raises(plex.PlexError, match="logprobs of sample 0"):
        plex.Batch.from_samples([sample([1], [2, 3], [-1.0])], advantages=[1.0])


def test_grpo_advantages_centre_and_scale_each_group() -> None:
    found = plex.grpo_advantages([0, 1, 1, 0, 3, 3], group=2)
    np.testing.assert_allclose(found, [-1, 1, 1, -1, 0, 0], atol=1e-5)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("rewards", "group"), [([1, 2, 3], 2), ([], 2), ([1, 2], 0), ([1, np.nan], 2)]
)
def test_rewards_that_form_no_groups_are_refused(rewards: list[float], group: int) -> None:
    with pytest.raises(plex.PlexError) as caught:
        plex.grpo_advantages(rewards, group=group)
    assert caught.value.code == "bad_batch"

"""Sampling parameters and prompts are refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from plexclient import sampling
from plexclient.errors import PlexError


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_options_that_are_left_out_take_their_defaults() -> None:
    params = sampling.to_wire()
    assert (params.n, params.max_tokens, params.temperature, params.top_p) == (1, 256, 1.0, 1.0)
    assert not params.HasField("seed")
    assert list(params.stop) == []


def test_stop_may_be_one_text_or_many_in_any_script() -> None:
    assert list(sampling.to_wire(stop="\n").stop) == ["\n"]
    assert list(sampling.to_wire(stop=["終", "é"]).stop) == ["終", "é"]


@pytest.mark.parametrize(
    "options",
    [
        {"min_p": 0.5},
        {"repetition_penalty": 1.5},
        {"presence_penalty": -1.0},
        {"frequency_penalty": 1.0},
        {"logit_bias": {3: 1.0}},
        {"structured_outputs": {"regex": "a"}},
    ],
)
def test_what_shapes_the_distribution_is_sent_and_remembered(options: dict[str, Any]) -> None:
    plain, shaped = sampling.to_wire(), sampling.to_wire(**options)
    assert shaped != plain
    assert (sampling.is_plain(plain), sampling.is_plain(shaped)) == (True, False)


def test_a_seed_of_zero_is_a_seed() -> None:
    assert sampling.to_wire(seed=0).HasField("seed")


@pytest.mark.parametrize(
    "options",
    [
        {"n": 0},
        {"n": True},
        {"stop": 5},
        {"stop": [None]},
        {"stop": "\ud800"},
        {"stop_token_ids": 5},
        {"logit_bias": [1]},
        {"ignore_eos": "yes"},
        {"prompt_logprobs": 3},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"min_tokens": 9, "max_tokens": 8},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"stop": [""]},
        {"seed": -1},
        {"stop_token_ids": [-2]},
        {"best_of": 3},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": -3.0},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: 101.0}},
        {"structured_outputs": {"json": {1, 2}}},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(PlexError) as caught:
        sampling.to_wire(**options)
    assert caught.value.code == "bad_request"
    assert next(iter(options)) in caught.value.message


def test_texts_and_token_ids_may_be_mixed() -> None:
    assert sampling.encode_prompts(["a", [1, 2]], encode=encode) == [[97], [1, 2]]


@pytest.mark.parametrize(
    ("prompts", "found"),
    [
        ([], "no prompts"),
        ("text", "takes a list"),
        ([[]], "prompt 0 has no tokens"),
        ([[1], [7, 50]], "prompt 1 has token id 50"),
        ([[-1]], "token id -1"),
        ([[1, 2.0]], "prompt 0 is neither"),
        ([[1], [[2]]], "prompt 1 is neither"),
        ([[1], 2], "prompt 1 is neither"),
        ([[1], b"abc"], r"prompt 1 is b'abc', which are bytes"),
        ([bytearray(b"abc")], "prompt 0 is bytearray.*, which are bytes"),
        (b"abc", "takes a list"),
    ],
)
def test_prompts_no_model_could_read_are_refused(prompts: Any, found: str) -> None:
    with pytest.raises(PlexError, match=found):
        sampling.encode_prompts(prompts, encode=encode, vocab_size=50)

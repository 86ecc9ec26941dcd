"""Bad batches are refused by array and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire import tensors
from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.batches import arrays_of, check_batch, check_loss
from plexsvc.errors import PlexError

RULES = service_pb2.BatchRules(
    vocab_size=50, max_sequence_length=6, required=["tokens", "cu_seqlens", "advantages"]
)


Arrays = dict[str, np.ndarray]


def check(arrays: Arrays, rules: service_pb2.BatchRules = RULES) -> None:
    bundle = tensors.encode(arrays)
    check_batch(bundle.tensors, tensors.decode(bundle), rules)


def batch(**changes: np.ndarray | None) -> Arrays:
    arrays: dict[str, np.ndarray | None] = {
        "cu_seqlens": np.array([0, 3, 5], np.int32),
        "tokens": np.array([1, 2, 3, 4, 49], np.int64),
        "target_tokens": np.array([2, 3, 4, 49, 0], np.int64),
        "advantages": np.array([0.5, -1, 0, 2, 3], np.float32),
        "mask": np.ones(5, np.bool_),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_a_good_batch_passes() -> None:
    check(batch())


@pytest.mark.parametrize(
    ("changes", "array", "position", "says"),
    [
        ({"advantages": None}, "advantages", None, "required and missing"),
        ({"cu_seqlens": np.array([1, 5], np.int32)}, "cu_seqlens", "0", "must start at 0"),
        ({"cu_seqlens": np.array([0, 4], np.int32)}, "cu_seqlens", "1", "has 5 tokens"),
        ({"cu_seqlens": np.array([0, 3, 3, 5], np.int32)}, "cu_seqlens", "1", "empty"),
        ({"cu_seqlens": np.array([0], np.int32)}, "cu_seqlens", None, "B+1 >= 2"),
        ({"cu_seqlens": np.array([0, 5], np.float32)}, "cu_seqlens", None, "integers"),
        ({"tokens": np.array([1, 2, 3, 4, 50], np.int64)}, "tokens", "4", "is 50 at position 4"),
        ({"target_tokens": np.array([-1] * 5, np.int64)}, "target_tokens", "0", "is -1"),
        ({"tokens": np.ones(5, np.float32)}, "tokens", None, "token ids are integers"),
        ({"mask": np.ones(4, np.bool_)}, "mask", None, "4 entries, tokens has 5"),
        ({"mask": np.ones((5, 1), np.bool_)}, "mask", None, "one axis"),
        ({"advantages": np.array([0, 0, np.inf, 0, 0], np.float32)}, "advantages", "2", "inf"),
    ],
)
def test_a_bad_array_is_named_with_its_first_bad_position(
    changes: dict[str, np.ndarray | None], array: str, position: str | None, says: str
) -> None:
    with pytest.raises(PlexError) as refused:
        check(batch(**changes))
    assert refused.value.code == "bad_batch"
    assert refused.value.facts.get("array") == array
    assert refused.value.facts.get("position") == position
    assert says in refused.value.message


def test_a_sequence_may_be_as_long_as_the_model_allows_and_no_longer() -> None:
    def of(length: int) -> Arrays:
        return {
            "cu_seqlens": np.array([0, length], np.int32),
            "tokens": np.zeros(length, np.int32),
            "advantages": np.zeros(length, np.float32),
        }

    check(of(6))
    with pytest.raises(PlexError, match="longer than the model's 6 tokens"):
        check(of(7))


def test_limits_of_zero_are_off() -> None:
    free = service_pb2.BatchRules()
    check(batch(tokens=np.array([10**6] * 5, np.int64)), free)


def test_a_repeated_array_is_refused() -> None:
    bundle = tensors.encode(batch())
    twice = [*bundle.tensors, bundle.tensors[0]]
    with pytest.raises(PlexError, match="comes 2 times"):
        check_batch(twice, tensors.decode(bundle), RULES)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20), st.integers(0, 49))
def test_any_packed_batch_within_the_limits_passes(lengths: list[int], token: int) -> None:
    num_tokens = sum(lengths)
    check(
        {
            "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
            "tokens": np.full(num_tokens, token, np.int32),
            "advantages": np.zeros(num_tokens, np.float32),
        }
    )


@pytest.mark.parametrize(
    ("body", "role", "arrays"),
    [
        ({"forward": operations_pb2.Forward()}, "actor", ("target_tokens",)),
        ({"forward": operations_pb2.Forward()}, "critic", ()),
        ({"backward": operations_pb2.Backward()}, "actor", ("target_tokens", "grad_logprobs")),
        ({"backward": operations_pb2.Backward()}, "critic", ("grad_logprobs",)),
        (
            {"forward_backward": operations_pb2.ForwardBackward(loss="cross_entropy")},
            "actor",
            ("target_tokens", "weights"),
        ),
    ],
)
def test_an_operation_reads_the_arrays_of_its_kind_loss_and_role(
    body: dict[str, Any], role: str, arrays: tuple[str, ...]
) -> None:
    assert arrays_of(operations_pb2.Operation(**body), role=role) == arrays


@pytest.mark.parametrize(
    ("loss", "arguments", "role", "says"),
    [
        ("pppo", {}, "actor", "known are cross_entropy"),
        ("value_mse", {}, "actor", "does not fit role 'actor'; use cispo"),
        ("ppo", {}, "critic", "use value_mse"),
        ("ppo", {"clp": 0.2}, "actor", "it takes: clip, clip_high"),
        ("ppo", {"clip": -0.2}, "actor", "not negative"),
        ("ppo", {"clip": float("nan")}, "actor", "finite"),
        ("gspo", {"beta": 0.1}, "actor", "it takes: clip, clip_high"),
    ],
)
def test_a_loss_that_does_not_fit_says_what_would(
    loss: str, arguments: dict[str, float], role: str, says: str
) -> None:
    with pytest.raises(PlexError, match=says):
        check_loss(loss, arguments, role=role)


def test_a_loss_that_fits_passes() -> None:
    check_loss("ppo", {"clip": 0.2, "clip_high": 0.0}, role="actor")

"""What an instance may send, and what is garbage."""

from __future__ import annotations

import math

import pytest

from plexclient.wire.v1 import operations_pb2
from plexsvc.rollout.engines.base import FINISH_ABORT, FINISH_LENGTH
from plexsvc.rollout.generation import Answers, GarbageError
from tests.rigs.rollout_requests import request

ASKED = [request([3, 4], index=0, seed=1, generated=[5, 6]), request([3], index=1, seed=2)]


def delta(
    index: int, position: int, *tokens: int, logprob: float = -1.0
) -> operations_pb2.SampleDelta:
    return operations_pb2.SampleDelta(
        prompt_index=index,
        position=position,
        token_ids=tokens,
        logprobs=[logprob] * len(tokens),
    )


def test_tokens_in_their_order_are_taken_from_where_a_sample_stood() -> None:
    answers = Answers(ASKED, vocab_size=50)
    answers.take([delta(0, 2, 7, 8), delta(1, 0, 49)])
    taken = answers.take([delta(0, 4, 9), delta(1, 1), delta(1, 1, 2)])
    assert [(one.key, one.position, one.count) for one in taken] == [
        ((0, 0), 4, 1),
        ((1, 0), 1, 0),
        ((1, 0), 1, 1),
    ]


def test_an_abort_ends_no_sample() -> None:
    answers = Answers(ASKED, vocab_size=50)
    aborted, ended = delta(0, 2, 7), delta(1, 0, 8)
    aborted.finish_reason, ended.finish_reason = FINISH_ABORT, FINISH_LENGTH
    taken = answers.take([aborted, ended])
    assert [(one.is_last, one.is_aborted) for one in taken] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        (delta(2, 0, 7), "without being asked"),
        (delta(0, 0, 7), r"position 0 instead of 2 of sample \(0, 0\)"),
        (delta(0, 3, 7), "position 3 instead of 2"),
        (delta(1, 0, 50), "token 50, with a vocabulary of 50"),
        (delta(1, 0, 7, logprob=math.nan), "no number"),
        (operations_pb2.SampleDelta(prompt_index=1, token_ids=[7]), "0 logprobs for 1 tokens"),
    ],
)
def test_garbage_is_told_with_its_flaw(garbage: operations_pb2.SampleDelta, says: str) -> None:
    with pytest.raises(GarbageError, match=says):
        Answers(ASKED, vocab_size=50).take([garbage])

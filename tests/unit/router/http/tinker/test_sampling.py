"""What the SDK's samples become, and what is refused of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import tinker_pb2 as pb
from plexsvc.errors import PlexError
from plexsvc.router.http.tinker import sampling

ASKED = {
    "prompt": {"chunks": [{"tokens": [3, 4, 5, 6]}]},
    "sampling_params": {"max_tokens": 4},
    "prompt_logprobs": True,
    "topk_prompt_logprobs": 1,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"record_stability_info": True}, "record_stability_info is not offered"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens: it must be a whole number from 1"),
        ({"prompt_logprobs_last_n": 0}, "prompt_logprobs_last_n: it must be a whole number"),
        ({"prompt_logprobs_last_n": 4}, "whole number from 1 to 3"),
    ],
)
def test_what_would_be_ignored_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(PlexError, match=words):
        sampling.operation_of(ASKED | changed, seed=1)


def test_without_a_bound_a_sample_goes_on_to_its_end() -> None:
    operation = sampling.operation_of(ASKED | {"sampling_params": {}}, seed=1)
    assert operation.generate.sampling.max_tokens == 0


@pytest.mark.parametrize(("last", "kept"), [(None, 3), (3, 3), (2, 2), (1, 1)])
def test_the_last_tokens_of_a_prompt_alone_are_scored(last: int | None, kept: int) -> None:
    likely = [ops.LikelyTokens(token_ids=[at], logprobs=[-at]) for at in (1, 2, 3)]
    delta = ops.SampleDelta(prompt_logprobs=[-1, -2, -3], prompt_likely=likely)
    response = pb.SampleResponse()
    sampling._add_prompt(response, delta, ASKED | {"prompt_logprobs_last_n": last}, tokens=4)
    nothing = 4 - kept
    scored = [-1.0, -2.0, -3.0][3 - kept :]
    found = np.frombuffer(response.prompt_logprobs, "<f4").tolist()
    assert [math.isnan(one) for one in found] == [True] * nothing + [False] * kept
    assert found[nothing:] == scored
    top = np.frombuffer(response.topk_prompt_logprobs.logprobs, "<f4").tolist()
    assert top == [np.float32(sampling.MASK_LOGPROB)] * nothing + scored

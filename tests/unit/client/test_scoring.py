"""Scores: in order, in every form, through cut lines, and as what training reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from plexclient.scoring import MAX_REQUEST_SAMPLES
from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import reward_pb2
from tests.fakes.fake_router import FakeRouter, Fault
from tests.rigs.waiting import wait_until
from tests.unit.client.conftest import TOKENIZER, Loop

TEXTS = ["a", "bbb", "cc"]


def values(scores: plex.Scores) -> list[float]:
    return [score.value for score in scores]


def test_scores_come_in_the_order_of_the_samples(loop: Loop, router: FakeRouter) -> None:
    scores = loop.job.score("exact", TEXTS, references=["a", {"b": 1}, None], strip=True)
    assert values(scores) == [1, 3, 2]
    (request,) = router.scored
    assert (request.program, request.settings) == ("exact", '{"strip": true}')
    assert [sample.reference for sample in request.samples] == ['"a"', '{"b": 1}', ""]
    assert (request.job_id, request.batch_size, len(request.batch_id)) == (loop.job.job_id, 3, 16)


async def test_every_form_gives_the_same(loop: Loop) -> None:
    score = loop.job.score
    assert values(score.submit("exact", TEXTS).result()) == [1, 3, 2]
    assert values(await score.aio("exact", TEXTS)) == [1, 3, 2]
    assert sorted(s.value for s in score.stream("exact", TEXTS)) == [1, 2, 3]
    assert sorted([s.value async for s in score.stream_aio("exact", TEXTS)]) == [1, 2, 3]


def test_after_a_cut_only_what_is_missing_is_asked_for(loop: Loop, router: FakeRouter) -> None:
    router.fail("Score", Fault(lose_request=True), Fault(cut_after=1))
    assert values(loop.job.score("exact", TEXTS)) == [1, 3, 2]
    asked = [[sample.index for sample in request.samples] for request in router.scored]
    assert asked == [[0, 1, 2], [1, 2]]
    assert len({request.batch_id for request in router.scored}) == 1


def test_a_large_batch_travels_in_several_requests(loop: Loop, router: FakeRouter) -> None:
    texts = ["x" * (i % 7) for i in range(2 * MAX_REQUEST_SAMPLES + 1)]
    assert values(loop.job.score("exact", texts)) == [i % 7 for i in range(len(texts))]
    assert sorted(len(request.samples) for request in router.scored) == [1, 1024, 1024]
    assert {request.batch_size for request in router.scored} == {len(texts)}


def test_a_refusal_is_raised(loop: Loop, router: FakeRouter) -> None:
    router.fail("Score", Fault(refuse=PlexError(ErrorCode.NOT_FOUND, "no such program")))
    with pytest.raises(PlexError, match="no such program"):
        loop.job.score("nope", TEXTS)


def test_an_answer_that_cannot_be_read_is_raised_and_not_waited_out(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nonsense(reply: reward_pb2.ScoreReply) -> plex.Score:
        raise ValueError(f"no score: {reply.index}")

    monkeypatch.setattr("plexclient.scoring._score", nonsense)
    with pytest.raises(ValueError, match="no score: 0"):
        loop.job.score.submit("exact", TEXTS).result(120)


def test_an_error_of_a_sample_is_its_own(loop: Loop) -> None:
    scores = loop.job.score("exact", ["a", "broken"])
    assert math.isnan(scores[1].value)
    assert [score.index for score in scores.errors] == [1]
    assert scores.filled(-1) == [1, -1]
    assert np.asarray(scores)[0] == 1
    with pytest.raises(PlexError, match="reward 1 is nan"):
        plex.grpo_advantages(scores, group=2)


@pytest.mark.parametrize(
    ("samples", "references", "text"),
    [
        (["a"], ["a", "b"], "2 references for 1 samples"),
        ("a text", None, "samples is 'a text'; score takes a list"),
        (None, None, "samples is None; score takes a list"),
        ([1], None, "sample 0 is 1; it must be a text"),
        (["\ud83c"], None, "sample 0 cannot be sent as UTF-8"),
        (["a"], ["b" * MAX_MESSAGE_BYTES], "sample 0 has 8388[0-9]+ bytes"),
        (["a"], [{1, 2}], "reference 0 cannot be sent as JSON"),
        (["a"], [math.nan], "reference 0 cannot be sent as JSON"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    samples: Sequence[str],
    references: list[object] | None,
    text: str,
    loop: Loop,
    router: FakeRouter,
) -> None:
    with pytest.raises(PlexError, match=text):
        loop.job.score("exact", samples, references=references)
    assert router.scored == []


def test_scoring_that_is_cancelled_ends(loop: Loop, router: FakeRouter) -> None:
    router.fail("Score", Fault(stalls=True))
    scores = loop.job.score.submit("exact", TEXTS)
    assert scores.cancel()
    with pytest.raises(PlexError, match="scoring by exact was cancelled"):
        scores.result(timeout=120)


def test_a_generate_is_cancelled_while_its_samples_are_scored(
    loop: Loop, router: FakeRouter
) -> None:
    router.files["tokenizer.json"] = json.dumps(TOKENIZER).encode()
    router.fail("Score", *[Fault(stalls=True)] * 3)
    samples = loop.rollout.generate.submit([[0]], score="exact", n=2, max_tokens=3)
    wait_until(lambda: router.calls.count("Score") == 3, what="both samples are sent")
    assert samples.cancel()
    with pytest.raises(PlexError, match="cancelled"):
        samples.result(timeout=120)


def test_a_generate_that_is_refused_announces_no_samples(loop: Loop, router: FakeRouter) -> None:
    router.files["tokenizer.json"] = json.dumps(TOKENIZER).encode()
    with pytest.raises(PlexError, match="no tokens"):
        loop.rollout.generate([[]], score="exact")
    loop.actor.noop()
    assert "Score" not in router.calls


def test_samples_without_text_are_refused(loop: Loop) -> None:
    samples = loop.rollout.generate([[1, 2]], max_tokens=2)
    with pytest.raises(PlexError, match="sample 0 has no text"):
        loop.job.score("exact", samples)


def test_no_samples_have_no_scores(loop: Loop, router: FakeRouter) -> None:
    assert values(loop.job.score("exact", [])) == []
    assert router.scored == []


def test_samples_are_scored_as_they_are_generated(loop: Loop, router: FakeRouter) -> None:
    router.files["tokenizer.json"] = json.dumps(TOKENIZER).encode()
    samples = loop.rollout.generate(
        [[0, 1], [2]], score="exact", references=["x", "y"], n=2, max_tokens=3
    )
    lengths = [len(sample.text or "") for sample in samples]
    assert samples.scores is not None
    assert values(samples.scores) == lengths
    assert values(samples[1:3].scores or plex.Scores([])) == lengths[1:3]
    sent = {s.index: (s.text, s.reference) for r in router.scored for s in r.samples}
    assert sent == {
        i: (sample.text, '"x"' if sample.prompt_index == 0 else '"y"')
        for i, sample in enumerate(samples)
    }
    hint = next(request for request in router.scored if not request.samples)
    assert (hint.program, hint.batch_size) == ("exact", 4)
    assert {request.batch_id for request in router.scored} == {hint.batch_id}
    with pytest.raises(PlexError, match="1 references for 2 prompts"):
        loop.rollout.generate([[0], [1]], score="exact", references=["x"])
    with pytest.raises(PlexError, match="references or settings without `score`"):
        loop.rollout.generate([[0]], references=["x"])


@pytest.mark.parametrize(
    ("prompts", "options", "text"),
    [
        (None, {}, "prompts is None; generate takes a list"),
        ([[1]], {"settings": [1]}, "settings is .1.; it must be a dict"),
        ([[1]], {"references": 7}, "references is 7; it must be a list"),
        ([[1]], {"score": 5}, "score is 5; it must be a text"),
        ([[1]], {"n": "two"}, "n='two'"),
    ],
)
def test_a_scored_generate_of_the_wrong_types_is_refused_before_anything_is_sent(
    prompts: Any,
    options: dict[str, Any],
    text: str,
    loop: Loop,
    router: FakeRouter,
) -> None:
    with pytest.raises(PlexError, match=text) as refused:
        loop.rollout.generate(prompts, **{"score": "exact", **options})
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert router.scored == []

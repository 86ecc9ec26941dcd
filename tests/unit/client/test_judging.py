"""Scores by a model that judges: prompts from the template, numbers from its answers."""

from __future__ import annotations

import json
import math
import string
from typing import Any

import pytest

from plexclient.errors import ErrorCode, PlexError
from tests.fakes.fake_router import VOCAB, FakeRouter, Fault, fake_tokens
from tests.unit.client.conftest import TOKENIZER, Loop

WORDS = (string.digits + string.ascii_letters)[:VOCAB]


@pytest.fixture(autouse=True)
def digits(router: FakeRouter) -> dict[str, int]:
    """Have the first ten tokens be digits, the others letters."""
    vocab = {word: i for i, word in enumerate(WORDS)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "x"}
    router.files["tokenizer.json"] = json.dumps({**TOKENIZER, "model": model}).encode()
    return vocab


def answer(prompt: str, count: int) -> str:
    """Return what the fake model answers."""
    ids = [WORDS.find(c) if c in WORDS else WORDS.index("x") for c in prompt]
    return "".join(WORDS[token] for token in fake_tokens(ids, 0, count))


def test_a_number_in_the_judges_answer_is_the_score(loop: Loop) -> None:
    texts, references = ["a", "bc{reference}"], ["1", {"a": 1}]
    settings: dict[str, Any] = {
        "deployment": loop.rollout,
        "template": "{reference}{text}",
        "pattern": "([0-9])",
        "scale": 2,
        "sampling": {"max_tokens": VOCAB},
    }
    scores = loop.job.score("judge", texts, references=references, **settings)
    for score, prompt in zip(scores, ["1a", '{"a": 1}bc{reference}'], strict=True):
        said = answer(prompt, VOCAB)
        assert score.output == said
        found = [c for c in said if c.isdigit()]
        assert (score.value, score.verdict) == (int(found[-1]) / 2, "scored")


def test_an_answer_without_a_number_is_an_error_of_its_sample(loop: Loop) -> None:
    (none,) = loop.job.score("judge", ["a"], deployment=loop.rollout, pattern="(;)")
    (word,) = loop.job.score(
        "judge",
        ["a"],
        deployment=loop.rollout,
        pattern="(x)",
        template="{text}",
        sampling={"max_tokens": VOCAB},
    )
    (huge,) = loop.job.score(
        "judge",
        ["a"],
        deployment=loop.rollout,
        pattern="([1-9])",
        scale=1e-320,
        sampling={"max_tokens": VOCAB},
    )
    assert (none.verdict, none.detail) == ("error", "the judge gave no number by '(;)'")
    assert (word.verdict, word.detail) == ("error", "score: 'x' is no number")
    assert math.isnan(none.value)
    assert huge.verdict == "error"


async def test_every_form_judges(loop: Loop) -> None:
    score = loop.job.score
    given: dict[str, Any] = {"deployment": loop.rollout, "pattern": "(.)", "template": "{text}"}
    texts = ["a", "ab", "abc"]
    whole = [s.value for s in score.submit("judge", texts, **given).result()]
    assert [s.value for s in await score.aio("judge", texts, **given)] == pytest.approx(
        whole, nan_ok=True
    )
    streamed = {s.index async for s in score.stream_aio("judge", texts, **given)}
    assert streamed == {0, 1, 2}
    assert list(score("judge", [], **given)) == []


def test_samples_are_judged_as_they_are_generated(loop: Loop, router: FakeRouter) -> None:
    judge = loop.job.deploy("judge", model=loop.actor, backend="vllm")
    samples = loop.rollout.generate(
        [[0, 1], [2]], score="judge", n=2, max_tokens=3, settings={"deployment": judge}
    )
    assert [score.index for score in samples.scores or ()] == [0, 1, 2, 3]
    assert router.scored == []


def test_why_the_judge_failed_is_raised(loop: Loop, router: FakeRouter) -> None:
    refusal = PlexError(ErrorCode.DEPLOYMENT_FAILED, "the judge is gone")
    router.fail("Operate/generate", Fault(refuse=refusal))
    with pytest.raises(PlexError, match="the judge is gone"):
        loop.job.score("judge", ["a"], deployment=loop.rollout)


BAD: dict[str, dict[str, Any]] = {
    "deployment": {"deployment": "rollout"},
    "template": {"template": "no place"},
    "pattern": {"pattern": "("},
    "scale": {"scale": 0},
    "weight": {"weight": 1},
    "sampling": {"sampling": {"n": 2}},
}


@pytest.mark.parametrize("field", BAD)
def test_a_setting_that_is_none_is_refused_by_its_name(field: str, loop: Loop) -> None:
    with pytest.raises(PlexError, match=field) as refused:
        loop.job.score("judge", ["a"], **{"deployment": loop.rollout, **BAD[field]})
    assert refused.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(PlexError, match="no group 1"):
        loop.job.score("judge", ["a"], deployment=loop.rollout, pattern="x")
    with pytest.raises(PlexError, match="deployment: it is None"):
        loop.job.score("judge", ["a"])

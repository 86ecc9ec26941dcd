"""Scores by a model that judges: prompts from the template, numbers from its answers."""

from __future__ import annotations

import json
import math
import re
import string
from typing import Any

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.judging import PATTERN, rating
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
        "scale": 20,
        "sampling": {"max_tokens": VOCAB},
    }
    scores = loop.job.score("judge", texts, references=references, **settings)
    for score, prompt in zip(scores, ["1a", '{"a": 1}bc{reference}'], strict=True):
        said = answer(prompt, VOCAB)
        assert score.output == said
        found = [c for c in said if c.isdigit()]
        assert (score.value, score.verdict) == (int(found[-1]) / 20, "scored")


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
    "scale: it is -10": {"scale": -10},
    "weight": {"weight": 1},
    "sampling": {"sampling": {"n": 2}},
}


MARKS = {
    **dict.fromkeys(
        ["8", "8.", "**8**", "Score: 8", "8. Good.", "8/10", "8 / 10", "**8**/10"], 0.8
    ),
    **dict.fromkeys(
        ["8 of 10", "Score: 8 out of 10", "8 points out of 10", "4 stars out of 5"], 0.8
    ),
    **dict.fromkeys(["80%", "80 %", "8 on a scale of 10", "8 on a scale from 0 to 10"], 0.8),
    **dict.fromkeys(["8 / 10 because of 2 mistakes", "8/10, that is 8", "80 out of 100"], 0.8),
    **dict.fromkeys(["8 (out of 10)", "8/10, I am 90% sure", "Mark: 8/10 (80%)"], 0.8),
    "95 out of 100": 0.95,
    "95/100": 0.95,
    "10/10": 1,
    "10 out of 10!": 1,
    "0/10": 0,
    "10": 1,
    "8.5": 0.85,
    "0": 0,
    "8 on a scale of 1-10": 0.8,
    "On a scale of 1 to 10, a score of 8": 0.8,
    "Out of 10: 8": 0.8,
    ".5": 0.05,
}


@pytest.mark.parametrize("said", MARKS)
def test_a_mark_is_a_share_of_what_it_is_out_of(said: str) -> None:
    assert rating(said, re.compile(PATTERN), scale=10) == (MARKS[said], "")


@pytest.mark.parametrize(
    "said",
    [
        *("95", "11/10", "110%", "1000000", "-5", "\u22125", "8/0", "-8/10", "10.5"),
        *("7-8", "7\u20138", "7 to 8", "8 or 9", "between 7 and 8", "8,5", "3.1.4", "not 8", "1e1"),
        *("3 of 3 steps are right. Rating: 4", "1/2 of the facts, so 4", "Rating: 6 (2 of 5 hold)"),
        *("Score: 8, confidence: 90%", "at least 8", "less than 8", "8+", "8?", "over 8"),
        *(
            "8 or less",
            "8 at most",
            "up to 8",
            "almost 8",
            "half of 8",
            "It isn't an 8",
            "8th",
            "8x",
        ),
        *("8 is wrong", "8 would be too high", "eight out of 10"),
        *("First 3. Then 8.", "8\n9", "7/10 or 8/10", "", "eight", "nan", "inf", "9" * 400),
    ],
)
def test_what_is_no_single_mark_of_the_scale_is_no_score(said: str) -> None:
    value, reason = rating(said, re.compile(PATTERN), scale=10)
    assert math.isnan(value)
    assert reason


@pytest.mark.parametrize(
    ("said", "value"), [("8/10", 0.8), ("First 3, then 8", 0.8), ("8 out of 10", 0.8), ("5", 0.5)]
)
def test_a_pattern_of_ones_own_takes_the_last_match_but_not_what_it_is_out_of(
    said: str, value: float
) -> None:
    assert rating(said, re.compile(r"(\d+)"), scale=10) == (value, "")


@pytest.mark.parametrize("field", BAD)
def test_a_setting_that_is_none_is_refused_by_its_name(field: str, loop: Loop) -> None:
    with pytest.raises(PlexError, match=field) as refused:
        loop.job.score("judge", ["a"], **{"deployment": loop.rollout, **BAD[field]})
    assert refused.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(PlexError, match="no group 1"):
        loop.job.score("judge", ["a"], deployment=loop.rollout, pattern="x")
    with pytest.raises(PlexError, match="deployment: it is None"):
        loop.job.score("judge", ["a"])

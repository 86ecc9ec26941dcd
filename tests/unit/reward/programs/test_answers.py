"""Programs that compare: what counts as right, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plexsvc.reward.programs.base import RefusedError, Scored, Work
from plexsvc.reward.programs.registry import PROGRAMS
from plexsvc.reward.sandbox.opening import NoSandbox

NONE = NoSandbox("these programs need none")


def score(program: str, text: str, reference: object = None, **settings: object) -> float:
    (stage,) = PROGRAMS[program].stages
    found = stage.run(Work(text=text, reference=reference, settings=settings, sandbox=NONE))
    assert isinstance(found, Scored)
    return found.score


@pytest.mark.parametrize(
    ("program", "text", "reference", "settings", "expected"),
    [
        ("exact", " Paris\n", "Paris", {}, 1),
        ("exact", " Paris", "Paris", {"strip": False}, 0),
        ("exact", "PARIS", "Paris", {"ignore_case": True}, 1),
        ("exact", "Lyon", ["Paris", "Lyon"], {}, 1),
        ("numeric", "first 3, then 1,234.5", 1234.5, {}, 1),
        ("numeric", "3.1415", 3.14159265, {"tolerance": 1e-3}, 1),
        ("numeric", "3.1415", 3.14159265, {}, 0),
        ("numeric", "-7", "-7", {}, 1),
        ("numeric", "none", 1, {}, 0),
        ("regex", "<answer>4</answer>", r"<answer>\d+</answer>", {}, 1),
        ("regex", "4", r"<answer>", {}, 0),
        ("regex", "<answer>4</answer>", "4", {"pattern": r"<answer>(.*)</answer>"}, 1),
        ("regex", "<answer>5</answer>", "4", {"pattern": r"<answer>(.*)</answer>"}, 0),
        ("math", r"so $\boxed{\frac{2}{4}}$", "1/2", {}, 1),
        ("math", "$x + 1$", "x + 2", {}, 0),
        ("math", "", "7", {}, 0),
    ],
)
def test_a_sample_gets_its_score(
    program: str, text: str, reference: object, settings: dict[str, Any], expected: float
) -> None:
    assert score(program, text, reference, **settings) == expected


@pytest.mark.parametrize(
    ("program", "reference", "text"),
    [
        ("exact", 4, "must be a text"),
        ("numeric", "four", "must be a number, not 'four'"),
        ("numeric", "nan", "must be a number"),
        ("regex", "(", "is none"),
        ("regex", None, "is none"),
        ("math", None, "must be an expression"),
    ],
)
def test_a_reference_that_means_nothing_is_refused(
    program: str, reference: object, text: str
) -> None:
    with pytest.raises(RefusedError, match=text):
        score(program, "4", reference)

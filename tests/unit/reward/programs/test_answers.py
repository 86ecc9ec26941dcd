"""Programs that compare: what counts as right, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from plexsvc.reward.programs.base import RefusedError, Scored, StageRun
from plexsvc.reward.programs.registry import PROGRAMS
from plexsvc.reward.sandbox.opening import NoSandbox
from tests.rigs.judged_answers import MATH_RIGHT, MATH_WRONG, NUMERIC_RIGHT, NUMERIC_WRONG

NONE = NoSandbox("these programs need none")


@pytest.fixture(autouse=True)
def any_length() -> Iterator[None]:
    """Read numbers of any length, as workers do."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


def score(program: str, text: str, reference: object = None, **settings: object) -> float:
    (stage,) = PROGRAMS[program].stages
    found = stage.run(StageRun(text=text, reference=reference, settings=settings, sandbox=NONE))
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
        ("numeric", "1e999999999", "must be a number"),
        ("numeric", True, "must be a number"),
        ("numeric", "42 or 43", "must be a number"),
        ("numeric", "1+1", "must be a number"),
        ("math", True, "must be an expression"),
        ("math", "", "no expression"),
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


@pytest.mark.parametrize(("text", "reference"), NUMERIC_RIGHT)
def test_a_number_that_a_strict_reader_takes_for_the_reference_is_right(
    text: str, reference: object
) -> None:
    assert score("numeric", text, reference) == 1


@pytest.mark.parametrize(("text", "reference"), NUMERIC_WRONG)
def test_a_number_that_a_strict_reader_refuses_is_wrong(text: str, reference: object) -> None:
    assert score("numeric", text, reference) == 0


@pytest.mark.parametrize(("text", "reference"), MATH_RIGHT)
def test_an_answer_that_a_teacher_accepts_is_right(text: str, reference: str) -> None:
    assert score("math", text, reference) == 1


@pytest.mark.parametrize(("text", "reference"), MATH_WRONG)
def test_an_answer_that_is_not_worked_out_or_not_one_is_wrong(text: str, reference: str) -> None:
    assert score("math", text, reference) == 0


def test_a_tolerance_is_a_share_of_the_larger_number_or_absolute_below_one() -> None:
    assert score("numeric", "101", 100, tolerance=0.01) == 1
    assert score("numeric", "102", 100, tolerance=0.01) == 0
    assert score("numeric", "0.05", 0, tolerance=0.1) == 1
    assert score("numeric", "3", 3.0000001, tolerance=0) == 0
    with pytest.raises(RefusedError, match="tolerance"):
        score("numeric", "3", 3, tolerance=-1.0)


def test_a_group_is_compared_with_a_text_or_a_number_only() -> None:
    pattern = r"<answer>(.*)</answer>"
    assert score("regex", "<answer>4</answer>", 4, pattern=pattern) == 1
    for reference in (True, ["4"], {"a": 4}):
        with pytest.raises(RefusedError, match="must be a text or a number"):
            score("regex", "<answer>4</answer>", reference, pattern=pattern)

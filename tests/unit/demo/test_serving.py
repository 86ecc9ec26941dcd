"""The demo of a serving engine that lends: what must fail does."""

from __future__ import annotations

from typing import Any

import pytest

from plexsvc.demo.serving import checks
from tests.rigs.demo_runs import RISING, make_run


def latencies(p99: float, *, requests: int = 40) -> dict[str, Any]:
    times = {"p99": p99, "objective": 500.0, "is_kept": p99 <= 500}
    return {"requests": requests, "ttft": times, "tpot": times}


KEPT, MISSED = latencies(300), latencies(501)
FIGURES: dict[str, Any] = {
    "alone": latencies(100),
    "lending": KEPT,
    "harvested_tokens": 5000,
    "harvested_share_of_idle": 0.4,
    "sent": 80,
    "answered": 80,
}
BOTH = ["TTFT of those served", "TPOT of those served"]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({}, []),
        ({"alone": latencies(600), "lending": MISSED}, []),  # not by the guest
        ({"lending": MISSED}, BOTH),
        ({"lending": latencies(100, requests=3)}, BOTH),
        ({"answered": 79}, ["traffic"]),
        ({"harvested_tokens": 999}, ["harvest"]),
    ],
)
def test_what_must_hold_is_checked(facts: dict[str, Any], names: list[str]) -> None:
    made = checks(FIGURES | facts, [make_run("bits", rewards=RISING)])
    assert [check.name for check in made if not check.passed] == names


def test_an_instance_that_is_lost_under_samples_fails_the_demo() -> None:
    made = checks(FIGURES, [make_run("bits", rewards=RISING, instances_lost=1)])
    assert [check.name for check in made if not check.passed] == ["lost instances"]

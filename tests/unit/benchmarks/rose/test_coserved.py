"""A simulated device on which a serving engine has a guest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rlboost.timeline import Timeline
from benchmarks.rose.coserved import CoservedDevice, Sharing, latency
from benchmarks.rose.stepped import Job, SteppedEngine
from benchmarks.rose.traffic import Request
from plexsvc.rollout.core.lending import Objectives

SERVING = EngineProfile(
    fixed_us=8_000, each_us=20, context_us=0.02, prefill_us=30, kv_tokens=200_000, batch=64
)
GUEST = EngineProfile(
    fixed_us=9_000, each_us=20, context_us=0.05, prefill_us=120, kv_tokens=100_000, batch=16
)
OBJECTIVES = Objectives(ttft_us=400_000, tpot_us=100_000)
SECOND_US = 1_000_000


class Bench:
    """A device with even traffic and a guest that always has something to do."""

    def __init__(self, sharing: Sharing) -> None:
        self.line = Timeline()
        self.device = CoservedDevice(
            self.line,
            SteppedEngine(SERVING),
            SteppedEngine(GUEST),
            OBJECTIVES,
            (2, 4),
            sharing=sharing,
        )
        self.device.told = self._told
        self.device.lost = self._lost

    def take(self, number: int) -> None:
        self.device.take(Job(number=number, prompt_tokens=4000, answer_tokens=100))

    def request(self, number: int) -> None:
        one = Request(at_us=0, prompt_tokens=500, answer_tokens=60, fresh_tokens=500)
        self.device.request(one, number)

    def _told(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.made >= job.answer_tokens:
                self.line.after(1000, partial(self.take, job.number))

    def _lost(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.line.after(SECOND_US, partial(self.take, job.number))


def play(sharing: Sharing, *, seconds: int = 60, requests: int = 120) -> CoservedDevice:
    """Serve requests that come evenly."""
    bench = Bench(sharing)
    for number in range(requests):
        at_us = number * seconds * SECOND_US // requests
        bench.line.after(at_us, partial(bench.request, number))
    if sharing is not Sharing.ALONE:
        for number in range(16):
            bench.line.after(0, partial(bench.take, number))
    while not bench.line.is_empty and bench.line.now_us < seconds * SECOND_US:
        bench.line.happen()
    return bench.device


def test_lending_keeps_objectives_and_uses_idle_time() -> None:
    alone, lending = play(Sharing.ALONE), play(Sharing.LENDING)
    assert latency([alone]).late == latency([lending]).late == 0
    seen = latency([lending])
    assert seen.requests >= 110
    assert seen.ttft_p99 * 1000 <= OBJECTIVES.ttft_us
    assert seen.tpot_p99 * 1000 <= OBJECTIVES.tpot_us
    assert lending.guest_us >= 0.6 * (60 * SECOND_US - alone.serving_us)


@pytest.mark.parametrize("sharing", [Sharing.ALTERNATE, Sharing.PRIORITY])
def test_steps_that_nobody_bounds_cost_requests_their_objectives(sharing: Sharing) -> None:
    seen = latency([play(sharing)])
    assert (
        seen.tpot_p99 * 1000 > OBJECTIVES.tpot_us
        or seen.ttft_p99 > latency([play(Sharing.LENDING)]).ttft_p99
    )


def test_who_knows_the_first_objective_alone_misses_the_other() -> None:
    seen, kept = latency([play(Sharing.TTFT_ONLY)]), latency([play(Sharing.LENDING)])
    assert seen.tpot_p99 * 1000 > OBJECTIVES.tpot_us >= kept.tpot_p99 * 1000
    assert seen.late > kept.late == 0


def test_a_guest_gets_no_step_beside_serving_that_has_no_slack() -> None:
    device = play(Sharing.LENDING, seconds=20, requests=2000)
    assert device.guest_us < 0.2 * 20 * SECOND_US
    assert device.stalls > 0


def test_pressure_takes_the_guest_s_memory() -> None:
    line = Timeline()
    lost: list[int] = []
    device = CoservedDevice(line, SteppedEngine(SERVING), SteppedEngine(GUEST), OBJECTIVES, (2, 4))
    device.lost = lambda jobs: lost.extend(job.number for job in jobs)
    for number in range(16):
        device.take(Job(number=number, prompt_tokens=4000, answer_tokens=1000))
    for number in range(48):
        one = Request(at_us=0, prompt_tokens=3900, answer_tokens=300, fresh_tokens=10)
        device.request(one, number)
    while line.now_us < 10 * SECOND_US and not line.is_empty:
        line.happen()
    assert lost
    assert device.budget.cuts > 0
    assert device.guest.held * 4 <= device.budget.guest_bytes

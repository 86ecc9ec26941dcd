"""A guest steps only when that costs no serving request its objective."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.errors import PlexError
from plexsvc.rollout.core.lending import (
    RESERVE,
    Guest,
    GuestRecord,
    Lender,
    Objectives,
    Serving,
    Stepper,
    Terms,
)
from plexsvc.rollout.core.step_times import StepForecast, StepWork

TTFT_US, TPOT_US = 200_000, 50_000
OBJECTIVES = Objectives(ttft_us=TTFT_US, tpot_us=TPOT_US)
BUSY_GUEST = Guest(has_work=True, samples=8)


def plain_us(step: StepWork) -> int:
    return 2000 + 20 * step.prompt_tokens + 400 * step.samples


def taught() -> StepForecast:
    times = StepForecast()
    for i in range(200):
        step = StepWork(prompt_tokens=i % 5 * 100, samples=i % 7)
        times.observe(step, took_us=plain_us(step))
    return times


def lender(**settings: object) -> Lender:
    made = Lender(objectives=OBJECTIVES, **settings)  # type: ignore[arg-type]  # as each test gives
    made.serving_times = taught()
    for one in made.guests:
        one.times = taught()
    return made


def decide(
    made: Lender, serving: Serving, guest: Guest = BUSY_GUEST, *, now_us: int = 0
) -> Stepper:
    return made.decide(serving, (guest,), now_us=now_us, minute=600).turn


def test_a_guest_steps_while_nothing_is_served() -> None:
    assert decide(lender(), Serving()) is Stepper.GUEST


def test_whoever_waits_for_a_first_token_goes_first() -> None:
    assert decide(lender(), Serving(queued=1)) is Stepper.SERVING


def test_between_tokens_the_guest_has_what_the_objective_leaves() -> None:
    made, serving = lender(), Serving(newest_token_us=[0, 5_000])
    planned_us = (1 - RESERVE) * TPOT_US
    slack = made.slack_us(serving, now_us=10_000)
    assert slack == pytest.approx(planned_us - 10_000 - plain_us(StepWork(samples=2)), rel=0.02)
    assert decide(made, serving, now_us=10_000) is Stepper.GUEST
    assert decide(made, serving, now_us=31_000) is Stepper.SERVING


def test_a_step_of_the_guest_never_takes_longer_than_the_slack() -> None:
    made, serving = lender(max_tokens=10**6), Serving(newest_token_us=[0])
    decision = made.decide(serving, (BUSY_GUEST,), now_us=20_000, minute=0)
    step = StepWork(prompt_tokens=decision.tokens - 8, samples=8)
    slack = made.slack_us(serving, now_us=20_000)
    assert slack is not None
    assert plain_us(step) <= slack * 1.02


def test_long_prompts_that_may_arrive_bound_the_guest() -> None:
    made = lender()
    for _ in range(20):
        made.prompt_arrived(8000)  # 162 ms of 200
    assert decide(made, Serving()) is Stepper.NOBODY


def test_where_requests_pile_up_nobody_slows_them_down() -> None:
    crowded = Serving(newest_token_us=[0] * 20, seats=32)
    assert decide(lender(), crowded) is Stepper.SERVING
    assert (
        decide(lender(), Serving(newest_token_us=[0], is_short_of_memory=True)) is Stepper.SERVING
    )


def test_of_an_engine_whose_times_are_unknown_nothing_is_taken() -> None:
    made = Lender(objectives=OBJECTIVES)
    assert decide(made, Serving(newest_token_us=[0])) is Stepper.SERVING
    tried = made.decide(Serving(), (BUSY_GUEST,), now_us=0, minute=0)
    assert (tried.turn, tried.tokens) == (Stepper.GUEST, 16)


def test_a_guest_that_fits_in_nowhere_is_tried_again_while_nothing_is_served() -> None:
    made = lender()
    made.guests[0].times = StepForecast()
    for i in range(100):
        made.guests[0].times.observe(StepWork(samples=1 + i % 4), took_us=5_000_000)
    assert made.decide(Serving(), (BUSY_GUEST,), now_us=1_000_000, minute=0).turn is Stepper.NOBODY
    tried = made.decide(Serving(), (BUSY_GUEST,), now_us=2_000_000, minute=0)
    assert (tried.turn, tried.tokens) == (Stepper.GUEST, 16)
    assert made.decide(Serving(), (BUSY_GUEST,), now_us=3_000_000, minute=0).turn is Stepper.NOBODY
    serving = Serving(newest_token_us=[4_000_000])
    assert made.decide(serving, (BUSY_GUEST,), now_us=4_000_000, minute=0).turn is Stepper.SERVING


def test_what_is_not_lent_is_not_used() -> None:
    assert decide(lender(is_lent=False), Serving()) is Stepper.NOBODY
    at_night = Terms(from_min=22 * 60, to_min=6 * 60)
    assert decide(lender(terms=at_night), Serving()) is Stepper.NOBODY
    assert at_night.is_open(23 * 60)
    assert at_night.is_open(5 * 60)


def test_a_share_of_the_time_is_kept() -> None:
    made, now_us, guest_us = lender(terms=Terms(share=0.25)), 0, 0
    while now_us < 40_000_000:
        if decide(made, Serving(), now_us=now_us) is Stepper.GUEST:
            made.stepped(Stepper.GUEST, StepWork(samples=8), took_us=plain_us(StepWork(samples=8)))
            guest_us += plain_us(StepWork(samples=8))
            now_us += plain_us(StepWork(samples=8))
        else:
            now_us += 5_000
    assert 0.24 < guest_us / now_us < 0.29


def lender_of(guests: int) -> Lender:
    return lender(guests=[GuestRecord() for _ in range(guests)])


def step_guests(made: Lender, guests: list[Guest], *, for_us: int, costs: list[int]) -> list[int]:
    """Let guests alone step for so long; return the time that each had."""
    now_us, had = 0, [0] * len(guests)
    while now_us < for_us:
        decision = made.decide(Serving(), guests, now_us=now_us, minute=0)
        assert decision.turn is Stepper.GUEST
        step, took_us = StepWork(samples=8), costs[decision.guest]
        made.stepped(Stepper.GUEST, step, took_us=took_us, guest=decision.guest)
        had[decision.guest] += took_us
        now_us += took_us
    return had


def test_guests_have_equal_time_however_long_their_steps_are() -> None:
    had = step_guests(lender_of(3), [BUSY_GUEST] * 3, for_us=2_000_000, costs=[1000, 5000, 9000])
    assert max(had) - min(had) <= 9000


def test_a_guest_without_work_is_left_out_and_has_saved_nothing_up_when_it_comes_back() -> None:
    made, idle = lender_of(2), Guest(has_work=False)
    assert step_guests(made, [BUSY_GUEST, idle], for_us=900_000, costs=[5200, 5200])[1] == 0
    had = step_guests(made, [BUSY_GUEST, BUSY_GUEST], for_us=100_000, costs=[5200, 5200])
    assert abs(had[0] - had[1]) <= 5200


def test_a_guest_whose_step_does_not_fit_lets_another_step() -> None:
    made = lender_of(2)
    made.guests[0].times = StepForecast()
    for i in range(100):
        made.guests[0].times.observe(StepWork(samples=1 + i % 4), took_us=5_000_000)
    busy = Serving(newest_token_us=[0])
    decision = made.decide(busy, [BUSY_GUEST, BUSY_GUEST], now_us=10_000, minute=0)
    assert (decision.turn, decision.guest) == (Stepper.GUEST, 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Objectives(ttft_us=0, tpot_us=1), "ttft_us is 0"),
        (lambda: Objectives(ttft_us=1, tpot_us=-1), "tpot_us is -1"),
        (lambda: Terms(share=0.0), "share is 0.0"),
        (lambda: Terms(share=1.5), "share is 1.5"),
        (lambda: Terms(from_min=-1), "from_min is -1"),
        (lambda: Terms(from_min=60, to_min=60), "to_min equals"),
    ],
)
def test_impossible_terms_are_refused(make: object, said: str) -> None:
    with pytest.raises(PlexError, match=re.escape(said)):
        make()


@dataclass(slots=True)
class _Request:
    arrived_us: int
    prompt: int
    left: int
    newest_us: int = 0
    gaps_us: list[int] = field(default_factory=list)


def _play(requests: list[_Request], made: Lender) -> int:
    """Serve `requests` on a device of exact step times, beside a guest; return its steps."""
    now_us, guest_steps = 0, 0
    while any(one.left for one in requests):
        here = [one for one in requests if one.left and one.arrived_us <= now_us]
        queued = [one for one in here if not one.newest_us]
        decoding = [one for one in here if one.newest_us]
        serving = Serving(queued=len(queued), newest_token_us=[o.newest_us for o in decoding])
        slack_us = made.slack_us(serving, now_us=now_us)
        decision = made.decide(serving, (BUSY_GUEST,), now_us=now_us, minute=0)
        if decision.turn is Stepper.GUEST:
            samples = min(8, decision.tokens)
            step = StepWork(prompt_tokens=decision.tokens - samples, samples=samples)
            assert not queued, "whoever waits for a first token goes first"
            assert slack_us is not None
            assert plain_us(step) <= 1.02 * slack_us, "no step is longer than the slack"
            now_us, guest_steps = now_us + plain_us(step), guest_steps + 1
        elif here:
            prompts = StepWork(prompt_tokens=sum(one.prompt for one in queued))
            own_us = plain_us(prompts) - plain_us(StepWork())
            now_us += plain_us(StepWork(samples=len(decoding))) + own_us
            for one in here:
                if one.newest_us:
                    one.gaps_us.append(now_us - one.newest_us - own_us)
                one.newest_us, one.left = now_us, one.left - 1
        else:
            now_us += 1000
    return guest_steps


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(100_000, 1_000_000), st.integers(16, 400), st.integers(1, 40)),
        min_size=1,
        max_size=14,
    )
)
def test_no_request_misses_its_objectives_by_a_guest(given_: list[tuple[int, int, int]]) -> None:
    requests, made = [_Request(*one) for one in given_], lender()
    for _ in range(20):
        made.prompt_arrived(400)
    assert _play(requests, made) > 0
    gaps_us = [gap for one in requests for gap in one.gaps_us]
    # Prompts of others that its batch computes are not the guest's doing.
    assert max([0, *gaps_us]) <= 1.02 * (1 - RESERVE) * TPOT_US

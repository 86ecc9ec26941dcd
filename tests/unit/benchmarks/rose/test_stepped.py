"""A simulated engine that is asked for each step."""

from __future__ import annotations

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rose.stepped import Job, SteppedEngine

PROFILE = EngineProfile(
    fixed_us=1000, each_us=10, context_us=0.1, prefill_us=2, kv_tokens=1000, batch=4
)


def job(number: int, *, prompt: int = 100, answer: int = 3, session: int | None = None) -> Job:
    return Job(number=number, prompt_tokens=prompt, answer_tokens=answer, session=session)


def play(engine: SteppedEngine, *, tokens: int = 2048) -> list[int]:
    """Step until nothing is left; return what each step took."""
    took, now_us = list[int](), 0
    while engine.has_work:
        planned = engine.begin(now_us, tokens=tokens)
        now_us += planned.took_us
        took.append(planned.took_us)
        engine.end(planned, now_us)
    return took


def test_a_step_takes_what_the_profile_says() -> None:
    engine = SteppedEngine(PROFILE)
    engine.add(job(1))
    # a prompt and its first token; then two steps of one sample with 101 and 102 tokens
    assert play(engine) == [1200, 1020, 1020]
    assert (engine.prefilled, engine.generated) == (100, 2)


def test_a_bounded_step_computes_a_part_of_a_prompt_after_the_next_tokens() -> None:
    engine = SteppedEngine(PROFILE)
    engine.add(job(1, answer=9))
    assert engine.has_work
    engine.end(engine.begin(0), 1)
    engine.add(job(2))
    assert engine.has_work
    planned = engine.begin(1, tokens=41)
    assert (planned.step.samples, planned.step.prompt_tokens) == (1, 40)


def test_every_sample_gets_its_turn_in_steps_of_few_tokens() -> None:
    engine = SteppedEngine(PROFILE)
    for number in range(3):
        engine.add(job(number, answer=4))
    assert engine.has_work
    engine.end(engine.begin(0), 1)
    for now_us in range(2, 5):
        engine.end(engine.begin(now_us, tokens=1), now_us)
    assert [one.made for one in engine.decoding] == [2, 2, 2]


def test_a_session_goes_on_from_what_is_cached_until_that_is_forgotten() -> None:
    engine = SteppedEngine(PROFILE)
    engine.add(job(1, session=7))
    play(engine)
    engine.add(job(2, prompt=150, session=7))
    play(engine)
    assert (engine.cached, engine.prefilled) == (103, 147)
    engine.forget([7])
    engine.add(job(3, prompt=200, session=7))
    play(engine)
    assert (engine.cached, engine.prefilled) == (103, 347)


def test_less_room_drops_prefixes_first_then_the_newest_jobs() -> None:
    engine = SteppedEngine(PROFILE)
    engine.add(job(1, session=1))
    play(engine)
    for number in (2, 3):
        engine.add(job(number, answer=50))
    assert engine.has_work
    planned = engine.begin(0)
    assert engine.limit(350) == []
    assert not engine.prefixes or engine.held + engine.kept <= 350
    assert [one.number for one in engine.limit(200)] == [3]
    engine.end(planned, 10)
    assert [one.number for one in engine.decoding] == [2]
    assert engine.held == 150


def test_a_job_that_does_not_fit_waits() -> None:
    engine = SteppedEngine(PROFILE)
    engine.limit(50)
    engine.add(job(1))
    assert not engine.has_work
    assert engine.queued == 1
    engine.limit(0)
    assert engine.queued == 0

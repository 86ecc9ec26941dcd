"""Patience: what is tried again, how long, and what ends it."""

from __future__ import annotations

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.retry import MAX_SUSPECT, Retry, persist

LOST = PlexError(ErrorCode.UNAVAILABLE, "cut", grpc_status="UNAVAILABLE")
DEADLINE = PlexError(ErrorCode.UNAVAILABLE, "deadline", grpc_status="DEADLINE_EXCEEDED")
SUSPECT = PlexError(ErrorCode.UNAVAILABLE, "odd", grpc_status="UNKNOWN")
FULL = PlexError(ErrorCode.QUEUE_FULL, "64 pending")
FINAL = PlexError(ErrorCode.BAD_BATCH, "nan")


class FakeClock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, duration_s: float) -> None:
        self.pauses.append(duration_s)
        self.now_s += duration_s


class FakeCall:
    """Fails with each error in turn, for ever with the last, or then answers."""

    def __init__(self, clock: FakeClock, *errors: PlexError, takes_s: float = 0.0) -> None:
        self._clock, self._errors, self._takes_s = clock, errors, takes_s
        self.attempts = 0

    async def __call__(self) -> str:
        self._clock.now_s += self._takes_s
        self.attempts += 1
        if self.attempts <= len(self._errors):
            raise self._errors[self.attempts - 1]
        return "answer"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def patience(clock: FakeClock, **limits: float) -> Retry:
    given = {"retry_for_s": 10.0, "give_up_after_s": 100.0, **limits}
    return Retry(clock, what="step op_1", jitter=lambda: 0.5, **given)


@pytest.mark.parametrize("error", [LOST, FULL, DEADLINE, SUSPECT])
async def test_what_may_pass_is_tried_again(clock: FakeClock, error: PlexError) -> None:
    call = FakeCall(clock, error, error, error)
    assert await persist(call, retry=patience(clock)) == "answer"
    assert call.attempts == 4


async def test_a_final_refusal_is_raised_at_once(clock: FakeClock) -> None:
    call = FakeCall(clock, FINAL)
    with pytest.raises(PlexError, match="nan"):
        await persist(call, retry=patience(clock))
    assert call.attempts == 1


async def test_pauses_double_up_to_a_bound(clock: FakeClock) -> None:
    await persist(FakeCall(clock, *[FULL] * 9), retry=patience(clock))
    assert clock.pauses[:3] == [0.02, 0.04, 0.08]
    assert max(clock.pauses) == 2.0


async def test_a_service_that_is_away_is_asked_again_soon(clock: FakeClock) -> None:
    await persist(FakeCall(clock, *[LOST] * 9), retry=patience(clock))
    assert max(clock.pauses) == 0.5


async def test_failures_in_a_row_are_bounded_in_time(clock: FakeClock) -> None:
    with pytest.raises(PlexError) as caught:
        await persist(FakeCall(clock, *[FULL] * 99), retry=patience(clock))
    assert caught.value.code == "queue_full"
    assert "64 pending; gave up after" in caught.value.message
    assert "retry_for_s" in caught.value.message
    assert 10 <= clock.now_s <= 13


async def test_a_deadline_on_a_healthy_line_starts_the_count_again(clock: FakeClock) -> None:
    errors = [*[LOST] * 9, DEADLINE] * 6
    call = FakeCall(clock, *errors)
    assert await persist(call, retry=patience(clock)) == "answer"
    assert clock.now_s > 10


async def test_an_operation_is_not_awaited_for_ever(clock: FakeClock) -> None:
    call = FakeCall(clock, *[DEADLINE] * 99, takes_s=60.0)
    with pytest.raises(PlexError) as caught:
        await persist(call, retry=patience(clock))
    assert caught.value.code == "operation_timeout"
    assert call.attempts == 2
    assert "plexctl explain" in caught.value.message


async def test_what_looks_like_a_bug_of_the_service_is_tried_a_few_times_only(
    clock: FakeClock,
) -> None:
    call = FakeCall(clock, *[SUSPECT] * 99)
    with pytest.raises(PlexError):
        await persist(call, retry=patience(clock, retry_for_s=1e9, give_up_after_s=1e9))
    assert call.attempts == MAX_SUSPECT + 1


async def test_what_gets_further_is_awaited_as_long_as_it_does(clock: FakeClock) -> None:
    call, growing = FakeCall(clock, *[DEADLINE] * 20, takes_s=60.0), patience(clock)

    async def attempt() -> str:
        growing.progress()
        return await call()

    assert await persist(attempt, retry=growing) == "answer"
    assert call.attempts == 21


async def test_bugs_met_now_and_then_do_not_end_what_gets_further(clock: FakeClock) -> None:
    growing = patience(clock)
    for _ in range(3 * MAX_SUSPECT):
        await growing.pause(SUSPECT)
        growing.progress()
    for _ in range(MAX_SUSPECT):
        await growing.pause(SUSPECT)
    with pytest.raises(PlexError, match="gave up"):
        await growing.pause(SUSPECT)

"""The retry loop ends: after so many calls, after so long, or when another would not help."""

from __future__ import annotations

import pytest

from plexsvc.rpc.retry import Patience, retry
from tests.fakes.fake_clock import FakeHastyClock


class Flaky:
    """Fails `failures` times, then answers."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise ConnectionError(self.left)
        return "answer"


async def test_a_call_that_works_at_last_is_answered() -> None:
    clock, call = FakeHastyClock(), Flaky(2)
    patience = Patience(pause_us=100, max_tries=3)
    assert await retry(call, on=OSError, clock=clock, patience=patience, what="x") == "answer"
    assert len(clock.slept_us) == 2
    assert all(75 <= pause_us <= 125 for pause_us in clock.slept_us)


async def test_the_last_failure_is_raised_after_so_many_calls() -> None:
    clock, call = FakeHastyClock(), Flaky(9)
    with pytest.raises(ConnectionError, match="6"):
        await retry(
            call, on=OSError, clock=clock, patience=Patience(pause_us=1, max_tries=3), what="x"
        )
    assert call.calls == 3
    assert len(clock.slept_us) == 2  # none after the last


async def test_no_pause_reaches_beyond_the_time_allowed() -> None:
    clock, call = FakeHastyClock(), Flaky(99)
    with pytest.raises(ConnectionError):
        await retry(
            call, on=OSError, clock=clock, patience=Patience(pause_us=100, within_us=1000), what="x"
        )
    assert sum(clock.slept_us) == 1000


async def test_what_would_fail_again_is_not_tried_again() -> None:
    clock, call = FakeHastyClock(), Flaky(9)

    async def again(error: OSError) -> bool:
        return error.args != (7,)

    with pytest.raises(ConnectionError, match="7"):
        await retry(
            call,
            on=OSError,
            clock=clock,
            patience=Patience(pause_us=1, max_tries=9),
            what="x",
            again=again,
        )
    assert call.calls == 2


async def test_other_errors_pass_at_once() -> None:
    clock, call = FakeHastyClock(), Flaky(1)
    with pytest.raises(ConnectionError):
        await retry(
            call, on=KeyError, clock=clock, patience=Patience(pause_us=1, max_tries=9), what="x"
        )
    assert clock.slept_us == []


def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, _high: 1.0)
    patience = Patience(pause_us=10, longest_pause_us=50, max_tries=6)
    assert list(patience.pauses(FakeHastyClock())) == [10, 20, 40, 50, 50]

"""Sessions of several turns against the fake router."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault, fake_tokens
from tests.rigs.waiting import wait_until


@pytest.fixture
def rollout(router: FakeRouter) -> Iterator[plex.Rollout]:
    with plex.connect(router.address, token=TOKEN) as cluster, cluster.job("agents") as job:
        yield job.deploy("rollout", model="/model", backend="vllm")


def test_a_turn_goes_on_from_all_before_it(router: FakeRouter, rollout: plex.Rollout) -> None:
    session = rollout.session()
    first = session.generate([3, 4], max_tokens=4)
    assert first.tokens == fake_tokens([3, 4], 0, 4)
    second = session.generate([5], max_tokens=2)
    context = [3, 4, *first.tokens, 5]
    assert (second.prompt_tokens, second.tokens) == (context, fake_tokens(context, 0, 2))
    assert session.tokens == [*context, *second.tokens]
    assert session.turns == [first, second]
    one, two = router.sampled
    assert one.generate.session == two.generate.session != ""
    assert (one.seq, two.seq) == (0, 0)
    rollout.session().generate([3])
    assert router.sampled[2].generate.session != one.generate.session


def test_sessions_run_at_once_and_beside_the_order(rollout: plex.Rollout) -> None:
    sessions = [rollout.session() for _ in range(5)]
    futures = [one.generate.submit([number], max_tokens=3) for number, one in enumerate(sessions)]
    assert rollout.generate([[7]], max_tokens=2)[0].tokens == fake_tokens([7], 0, 2)
    assert [f.result().tokens for f in futures] == [fake_tokens([n], 0, 3) for n in range(5)]


@pytest.mark.parametrize(
    "fault",
    [Fault(cut_after=1), Fault(cut_after=2), Fault(refuse=PlexError(ErrorCode.QUEUE_FULL, "full"))],
)
def test_a_turn_whose_line_is_cut_begins_anew_and_counts_once(
    router: FakeRouter, rollout: plex.Rollout, fault: Fault
) -> None:
    session = rollout.session()
    router.fail("Sample", fault)
    sample = session.generate([3, 4], max_tokens=7)
    assert sample.tokens == fake_tokens([3, 4], 0, 7)
    assert session.tokens == [3, 4, *sample.tokens]
    assert len({one.operation_id for one in router.sampled}) == len(router.sampled)


def test_a_turn_that_is_refused_leaves_the_session_as_it_was(
    router: FakeRouter, rollout: plex.Rollout
) -> None:
    session = rollout.session()
    session.generate([3], max_tokens=1)
    before = list(session.tokens)
    router.fail("Sample", Fault(refuse=PlexError(ErrorCode.NOT_FOUND, "no weights yet")))
    with pytest.raises(PlexError, match="no weights yet"):
        session.generate([4])
    for wrong in ({"n": 2}, {"max_tokens": 0}):
        with pytest.raises(PlexError) as refused:
            session.generate([4], **wrong)  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.BAD_REQUEST
    assert (session.tokens, len(session.turns)) == (before, 1)
    assert session.generate([], max_tokens=1).prompt_tokens == before


def test_one_turn_of_a_session_at_a_time(router: FakeRouter, rollout: plex.Rollout) -> None:
    session = rollout.session()
    router.hold = threading.Event()
    first = session.generate.submit([3], max_tokens=100)
    with pytest.raises(PlexError, match="a turn of this session runs"):
        session.generate([4])
    router.hold.set()
    assert len(first.result().tokens) == 100
    assert len(session.generate([4], max_tokens=1).tokens) == 1


def test_a_turn_that_is_cancelled_leaves_the_session_as_it_was(
    router: FakeRouter, rollout: plex.Rollout
) -> None:
    session = rollout.session()
    session.generate([3], max_tokens=1)
    before = list(session.tokens)
    router.hold = threading.Event()
    turn = session.generate.submit([4], max_tokens=100)
    wait_until(lambda: len(router.sampled) == 2, what="the turn is under way")
    assert turn.cancel()
    with pytest.raises(PlexError) as ended:
        turn.result(timeout=120)
    assert ended.value.code is ErrorCode.CANCELLED
    assert not turn.cancel()
    assert (session.tokens, len(session.turns)) == (before, 1)
    router.hold.set()
    assert session.generate([], max_tokens=1).prompt_tokens == before


@pytest.mark.parametrize("prompt", [None, 7, [None], ["a"], b"abc"])
def test_what_is_no_prompt_is_refused_before_anything_is_sent(
    prompt: Any,
    router: FakeRouter,
    rollout: plex.Rollout,
) -> None:
    with pytest.raises(PlexError, match="prompt") as refused:
        rollout.session().generate(prompt)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert router.sampled == []

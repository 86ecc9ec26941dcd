"""One operation, one effect: cuts, refusals and patience that ends, with successors in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import plexclient as plex
from plexclient import lane
from plexclient.errors import ErrorCode, PlexError
from plexclient.payloads import Inputs
from plexclient.session import Session
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault
from tests.unit.client.conftest import Loop

LOST_IN = Fault(lose_request=True)
LOST_OUT = Fault(lose_reply=True)


def applied(router: FakeRouter, deployment: plex.Deployment) -> list[tuple[int, str]]:
    return router.lanes[deployment.deployment_id].applied


def ids(router: FakeRouter, kind: str) -> list[bytes]:
    return [op.operation_id for op in router.attempts if op.WhichOneof("body") == kind]


@pytest.mark.parametrize(
    "faults",
    [
        [LOST_IN],
        [LOST_OUT],
        [LOST_IN, LOST_OUT, LOST_OUT],
        [Fault(lose_reply=True, status=grpc.StatusCode.DEADLINE_EXCEEDED)] * 3,
        [Fault(lose_reply=True, status=grpc.StatusCode.UNKNOWN)],
        [Fault(refuse=PlexError(ErrorCode.QUEUE_FULL, "64 pending"))] * 2,
    ],
)
def test_a_cut_call_is_repeated_under_its_id_and_runs_once(
    loop: Loop, router: FakeRouter, faults: list[Fault]
) -> None:
    router.fail("Operate", *faults)
    assert loop.actor.step(lr=0.5)["lr"] == 0.5
    assert applied(router, loop.actor) == [(1, "step")]
    assert len(ids(router, "step")) == len(faults) + 1
    assert len(set(ids(router, "step"))) == 1


def test_a_repeat_is_the_same_bytes(loop: Loop, router: FakeRouter) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]])
    router.fail("Operate", LOST_IN, LOST_OUT)
    loop.actor.forward_backward(batch, loss="cross_entropy", scale=2.0)
    first, second, third = router.attempts
    assert first == second == third


def test_cuts_do_not_change_the_order_of_what_was_submitted(loop: Loop, router: FakeRouter) -> None:
    router.fail("Operate", LOST_IN, None, LOST_OUT, None, LOST_IN, LOST_IN, LOST_OUT)
    calls = [loop.actor.step.submit(lr=float(i)) for i in range(12)]
    assert [call.result()["lr"] for call in calls] == [float(i) for i in range(12)]
    assert [seq for seq, _ in applied(router, loop.actor)] == list(range(1, 13))


def test_a_final_error_is_raised_as_the_service_said_it(loop: Loop, router: FakeRouter) -> None:
    broken = PlexError(ErrorCode.WINDOW_BROKEN, "zero_grad first", window=3)
    router.fail("Operate", Fault(refuse=broken))
    with pytest.raises(PlexError) as caught:
        loop.actor.step()
    assert (caught.value.code, caught.value.message) == ("window_broken", "zero_grad first")
    assert caught.value.facts == {"window": "3"}
    assert not caught.value.retryable


@pytest.fixture
def impatient(router: FakeRouter) -> Iterator[plex.Actor]:
    options = plex.ClientOptions(retry_for_s=0.0)
    with (
        plex.connect(router.address, token=TOKEN, options=options) as cluster,
        cluster.job("impatient") as job,
    ):
        yield job.deploy("actor", model="/model", backend="noop")


def test_when_patience_ends_the_refusal_is_raised_and_successors_still_run(
    impatient: plex.Actor, router: FakeRouter
) -> None:
    full = PlexError(ErrorCode.QUEUE_FULL, "64 pending", limit=64)
    router.fail("Operate/step", Fault(refuse=full))
    given_up = impatient.step.submit()
    after = impatient.zero_grad.submit()
    with pytest.raises(PlexError, match="64 pending; gave up") as caught:
        given_up.result(120)
    assert caught.value.code == "queue_full"
    assert caught.value.facts["limit"] == "64"
    after.result(120)
    assert applied(router, impatient) == [(1, "noop"), (2, "zero_grad")]


def test_an_operation_that_was_given_up_but_known_is_not_run_again(
    impatient: plex.Actor, router: FakeRouter
) -> None:
    router.fail("Operate/step", LOST_OUT)
    with pytest.raises(PlexError) as caught:
        impatient.step()
    assert caught.value.code == "unavailable"
    impatient.noop()
    assert applied(router, impatient) == [(1, "step"), (2, "noop")]


def test_the_client_sends_no_more_at_once_than_its_limit(router: FakeRouter) -> None:
    options = plex.ClientOptions(max_in_flight_per_deployment=2)
    with (
        plex.connect(router.address, token=TOKEN, options=options) as cluster,
        cluster.job("narrow") as job,
    ):
        actor = job.deploy("actor", model="/model", backend="noop")
        calls = [actor.step.submit(lr=float(i)) for i in range(9)]
        assert [call.result()["lr"] for call in calls] == [float(i) for i in range(9)]


def test_generating_more_than_a_message_holds_is_refused_early(
    loop: Loop, router: FakeRouter
) -> None:
    with pytest.raises(PlexError) as caught:
        loop.rollout.generate([[49] * 100_000] * 100)
    assert caught.value.code == "payload_too_large"
    assert "split the prompts" in caught.value.message
    assert router.attempts == []


CALLS = ["check_open", "inputs", "_check_size", "payload", "take", "submit", "stage", "check"]
ERRORS: dict[str, Callable[[], Exception]] = {
    "retryable": lambda: PlexError(ErrorCode.STAGING_FULL, "others wait there"),
    "final": lambda: PlexError(ErrorCode.BAD_BATCH, "cannot be meant"),
    "memory": lambda: MemoryError("no more"),
    "file": lambda: OSError(28, "no space left"),
    "bug": lambda: RuntimeError("out of luck"),
}


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_any_call_leaves_no_gap_and_applies_nothing_twice(
    router: FakeRouter, monkeypatch: pytest.MonkeyPatch, call: str, error: str, is_after: bool
) -> None:
    options = plex.ClientOptions(staging_settle_s=0.05)
    with (
        plex.connect(router.address, token=TOKEN, options=options) as cluster,
        cluster.job("faulty") as job,
    ):
        actor = job.deploy("actor", model="/model", backend="noop")
        actor.noop()
        session = actor.job_session
        has_failed = arm(monkeypatch, session, call, ERRORS[error], is_after=is_after)
        is_large = call == "stage"
        batch = plex.Batch.from_sequences([[1] * 20_000] if is_large else [[1, 2, 3]])
        found: object = None
        try:
            actor.forward(batch)
        except Exception as raised:  # noqa: BLE001 - what the caller sees
            found = raised
        assert has_failed()
        if (call, is_after) != ("take", True):  # it takes all or raises
            assert session.budget.used_bytes == 0
        ended = []
        if is_large and found is not None and not is_after:
            assert isinstance(found, type(ERRORS[error]())), "not that it was cancelled for it"
            ended = [2]
        actor.step()
        numbers = [seq for seq, _ in applied(router, actor)]
        assert sorted(numbers + ended) == list(range(1, len(numbers + ended) + 1))
        kinds = [kind for _, kind in applied(router, actor)]
        assert kinds.count("forward") <= 1 - len(ended)
        assert kinds[-1] == "step"
        assert found is not None or kinds == ["noop", "forward", "step"]


def arm(
    monkeypatch: pytest.MonkeyPatch,
    session: Session,
    call: str,
    error: Callable[[], Exception],
    *,
    is_after: bool,
) -> Callable[[], bool]:
    """Have one call fail once, before or after it was made; return whether it has."""
    homes: dict[str, tuple[object, str]] = {
        "check_open": (session, "check_open"),
        "take": (session.budget, "take"),
        "submit": (session.link, "submit"),
        "stage": (session.link, "stage"),
        "payload": (Inputs, "payload"),
    }
    home, name = homes.get(call, (lane, call))
    real = getattr(home, name)
    failed: list[str] = []

    async def later(*args: Any, **named: Any) -> Any:
        is_first = not failed
        failed.append(name)
        if is_first and not is_after:
            raise error()
        found = await real(*args, **named)
        if is_first:
            raise error()
        return found

    def now(*args: Any, **named: Any) -> Any:
        is_first = not failed
        failed.append(name)
        if is_first and not is_after:
            raise error()
        found = real(*args, **named)
        if is_first:
            raise error()
        return found

    monkeypatch.setattr(home, name, later if inspect.iscoroutinefunction(real) else now)
    return lambda: bool(failed)

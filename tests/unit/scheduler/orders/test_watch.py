"""The watch over work: what gets on is left alone, what hangs is given up, the operation first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.orders import watch
from plexsvc.scheduler.orders.ranks import Rank
from plexsvc.scheduler.orders.watch import Watch
from tests.fakes.fake_clock import FakeHastyClock
from tests.rigs.scheduler_rig import Rig, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
TIMEOUT_US = 1_000_000
ASK_US = TIMEOUT_US // watch.ASKS


@dataclass
class FakeCarrier:
    """Says how far it is: the next count, or that it cannot say."""

    counts: list[int | Exception] = field(default_factory=list)
    alive: bool = True
    name: str = "wpg-1-1/0"
    asked: int = 0

    def is_alive(self) -> bool:
        return self.alive

    async def progress(self) -> int:
        self.asked += 1
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        if isinstance(count, Exception):
            raise count
        return count


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watch]:
    monkeypatch.setattr(watch, "LOOK_US", ASK_US)
    made = Watch(FakeHastyClock(), progress_timeout_us=TIMEOUT_US)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.run())
        yield made
        running.cancel()


async def caught(watched: Watch, *carriers: FakeCarrier) -> PlexError:
    """Return what becomes of work that never ends."""
    with pytest.raises(PlexError) as error:
        async with watched.over("a step", carriers, stuck=ErrorCode.OPERATION_TIMEOUT):
            await asyncio.Event().wait()
    return error.value


async def test_work_that_does_not_get_on_is_given_up(watched: Watch) -> None:
    carrier = FakeCarrier([7])
    error = await caught(watched, carrier)
    assert error.code is ErrorCode.OPERATION_TIMEOUT
    assert "a step made no progress for 1 s" in error.message
    assert carrier.asked == watch.ASKS + 1, "the first count is where it begins"


async def test_work_that_gets_on_takes_the_time_it_takes(watched: Watch) -> None:
    steps = 5 * watch.ASKS
    carrier = FakeCarrier([*range(steps), steps])
    await caught(watched, carrier)
    assert carrier.asked > steps


async def test_one_of_several_that_gets_on_is_enough(watched: Watch) -> None:
    steps = 5 * watch.ASKS
    carrier = FakeCarrier([*range(steps), steps])
    await caught(watched, FakeCarrier([3]), carrier)
    assert carrier.asked > steps


async def test_one_that_does_not_say_how_far_it_is_does_not_get_on(watched: Watch) -> None:
    error = await caught(watched, FakeCarrier([OSError("no answer")]))
    assert error.code is ErrorCode.OPERATION_TIMEOUT


async def test_one_that_falls_silent_is_given_up_at_once(watched: Watch) -> None:
    error = await caught(watched, FakeCarrier([1, 2, 3, 4, 5, 6]), FakeCarrier([1], alive=False))
    assert error.code is ErrorCode.WORKER_DIED
    assert "stopped answering during a step" in error.message


async def test_a_timeout_of_the_work_itself_is_not_the_watchs(watched: Watch) -> None:
    with pytest.raises(TimeoutError, match="its own"):
        async with watched.over("a step", [FakeCarrier([1])]):
            raise TimeoutError("its own")


# -- in the service


def hang(rig: Rig, kind: str) -> asyncio.Event:
    """Make operations of a kind hang; return what tells that one does."""
    begun = asyncio.Event()

    async def execute(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply | None:
        if request.operation.WhichOneof("body") == kind:
            begun.set()
            await asyncio.Event().wait()
        return None

    rig.behaviour.on_execute = execute
    return begun


@pytest.fixture
def timeout_us(request: pytest.FixtureRequest) -> int:
    """How long work may not get on."""
    found: int = getattr(request, "param", 200_000)
    return found


@pytest.fixture
async def rig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_us: int
) -> AsyncIterator[Rig]:
    monkeypatch.setattr(watch, "LOOK_US", 10_000)
    config = SchedulerConfig(progress_timeout_us=timeout_us)
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}], config=config) as running:
        yield running


async def test_an_operation_stuck_on_ranks_ends_its_deployment(rig: Rig) -> None:
    await rig.job("a")
    await rig.deploy("a")
    hang(rig, "step")
    stuck = await rig.run("a", "step")
    assert stuck.error.code == ErrorCode.WORKER_DIED
    assert "scheduler.progress_timeout_us" in stuck.error.message
    assert "/its/log)\nthe stacks of wpg-1-1/0" in stuck.error.message
    assert (await rig.run("a")).error.code == ErrorCode.DEPLOYMENT_FAILED
    await rig.job("b")
    await rig.deploy("b")
    assert rig.behaviour.stopped, "the device was free for another only once the ranks were gone"


async def test_a_stuck_generate_ends_alone_and_its_deployment_goes_on(rig: Rig) -> None:
    await rig.job("a")
    await rig.deploy("a", "rollout", role="rollout")
    hang(rig, "generate")
    stuck = await rig.run("a", "generate", name="rollout")
    assert stuck.error.code == ErrorCode.OPERATION_TIMEOUT
    assert rig.rollout.cancelled == [stuck.operation_id]
    assert (await rig.run("a", name="rollout")).state == ANSWERED


async def test_a_rank_that_hangs_in_a_switch_is_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in ("a", "b"):
        await rig.job(job)
        await rig.deploy(job)
    moving = asyncio.Event()

    async def never(node_id: str, request: statemanager_pb2.MoveRequest) -> None:
        del node_id
        if request.wpg_id == "wpg-1-2":
            moving.set()
            await asyncio.Event().wait()

    rig.behaviour.on_move = never
    monkeypatch.setattr(Rank, "is_alive", lambda rank: rank.proc_id != "wpg-1-2/0")
    assert (await rig.run("a")).state == ANSWERED, "the device is free once the hung rank is gone"
    assert moving.is_set()
    assert (await rig.run("b")).error.code == ErrorCode.DEPLOYMENT_FAILED


@pytest.fixture
async def shared(rig: Rig) -> Rig:
    """Two jobs of which one is on the device: the next operation of `a` moves both."""
    for job in ("a", "b"):
        await rig.job(job)
        await rig.deploy(job)
    return rig


@pytest.mark.parametrize("timeout_us", [800_000], indirect=True)
async def test_a_move_takes_the_time_it_takes_while_bytes_move(
    shared: Rig, timeout_us: int
) -> None:
    behaviour = shared.behaviour
    loop = asyncio.get_running_loop()

    async def slowly(node_id: str, request: statemanager_pb2.MoveRequest) -> None:
        del node_id
        until = loop.time() + 2 * timeout_us / 1e6
        while loop.time() < until:
            behaviour.worked[request.wpg_id] += 1
            await asyncio.sleep(0.01)

    behaviour.on_move = slowly
    assert (await shared.run("a")).state == ANSWERED
    assert behaviour.moves


async def test_a_move_of_which_no_byte_moves_is_given_up(shared: Rig) -> None:
    async def never(node_id: str, request: statemanager_pb2.MoveRequest) -> None:
        del node_id
        shared.behaviour.worked["another"] += 1
        if request.wpg_id == "wpg-1-2":
            await asyncio.Event().wait()

    shared.behaviour.on_move = never
    async with asyncio.timeout(120):
        assert (await shared.run("a")).state == ANSWERED, "the device is free when it is stopped"
        failed = await shared.run("b")
    assert failed.error.code == ErrorCode.DEPLOYMENT_FAILED
    assert "made no progress" in failed.error.message
    assert "the stacks of wpg-1-2/0" in failed.error.message


@pytest.mark.parametrize(("kind", "method"), [("publish", "Publish"), ("state_digest", "Digest")])
async def test_a_copy_or_digest_that_hangs_ends_alone(rig: Rig, kind: str, method: str) -> None:
    await rig.job("a")
    await rig.deploy("a")
    rig.behaviour.hangs.add(method)
    async with asyncio.timeout(120):
        stuck = await rig.run("a", kind)
    assert stuck.error.code == ErrorCode.OPERATION_TIMEOUT
    assert "made no progress" in stuck.error.message
    assert (await rig.run("a", "step")).state == ANSWERED

"""Plans computed beside the event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from plexclient.wire.v1 import operations_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.api.views import newcomer
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.actions import Action, ComputePlan
from plexsvc.scheduler.core.events import NodeLost, OperationFinished, PlanComputed
from plexsvc.scheduler.core.planning import plans
from plexsvc.scheduler.core.planning.plans import Goal, Plan, Question
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.orders.plans import PlanThread
from tests.rigs import stored
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig

PATIENCE_S = 120
T = TypeVar("T")


class FakeSlowness:
    """Work on a thread that is held until it may go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def slowed(self, work: Callable[..., T]) -> Callable[..., T]:
        def slow(*args: object, **named: object) -> T:
            self.begun.set()
            assert self.may_end.wait(PATIENCE_S)
            return work(*args, **named)

        return slow


@pytest.fixture
def slow() -> Iterator[FakeSlowness]:
    slow = FakeSlowness()
    yield slow
    slow.may_end.set()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Rig]:
    """Two nodes with a job each, and leases that are short."""
    config = SchedulerConfig(node_lease_us=1_500_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 2, config=config) as rig:
        for job_id in ("job-1", "job-2"):
            await rig.job(job_id)
            await rig.deploy(job_id)
        yield rig


async def works_meanwhile(rig: Rig, slow: FakeSlowness) -> None:
    """See that operations run, are journaled, and leases are renewed while a plan is computed."""
    assert await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
    renewed = len(rig.agents[0].ttls)
    reply = await rig.run("job-1")
    assert reply.state == operations_pb2.OPERATION_STATE_ANSWERED
    await until(lambda: len(rig.agents[0].ttls) >= renewed + 2)
    kinds = journaled(rig)
    assert kinds.count(OperationFinished) >= 3
    assert not {NodeLost, PlanComputed} & {*kinds}


def journaled(rig: Rig) -> list[type]:
    return [type(event) for event in journal.replay(stored.journal(rig.store))]


async def repack(rig: Rig) -> pb.MovesReply:
    request = pb.RepackRequest(is_operator=True, tenant="ops")
    return await rig.scheduler.call("Repack", request, pb.MovesReply)


async def test_nothing_waits_for_a_plan(
    two: Rig, slow: FakeSlowness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "compute", slow.slowed(plans.compute))
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(repack(two))
        await works_meanwhile(two, slow)
        assert not call.done()
        slow.may_end.set()
    assert journaled(two).count(PlanComputed) == 1
    assert len(call.result().moves) <= 1


async def test_nothing_waits_for_a_what_if(
    two: Rig, slow: FakeSlowness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomer, "what_if", slow.slowed(newcomer.what_if))
    job = pb.JobShape(num_devices=1, period_us=60_000_000)
    asked = two.scheduler.call("WhatIf", pb.WhatIfRequest(tenant=TENANT, job=job), pb.WhatIfReply)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(asked)
        await works_meanwhile(two, slow)
        assert not call.done()
        slow.may_end.set()
    assert call.result().fits


async def test_a_plan_that_cannot_be_made_is_told_and_changes_nothing(
    two: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(question: Question) -> Plan:
        raise ZeroDivisionError(question.goal)

    monkeypatch.setattr(plans, "compute", broken)
    with pytest.raises(PlexError, match="no plan was made") as failed:
        await repack(two)
    assert failed.value.code is ErrorCode.UNAVAILABLE
    monkeypatch.undo()
    assert len((await repack(two)).moves) <= 1


async def test_a_plan_that_is_ordered_again_with_its_outcome_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "compute", lambda _: Plan())
    order = ComputePlan(device_kind="train", goal=Goal.RELIEF, base=1)
    again: list[Coroutine[object, object, object]] = []

    async def decide(_: PlanComputed) -> list[Action]:
        if not again:
            again.append(thread.plan(order))
        return []

    thread = PlanThread(question=lambda *_: cast("Question", None), decide=decide)
    await thread.plan(order)
    (second,) = again
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(thread.followed([order]))
        await asyncio.sleep(0)
        await second
    assert followed.result() == [order]
    thread.close()

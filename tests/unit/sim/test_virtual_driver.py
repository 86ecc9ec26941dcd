"""The virtual driver: which actions it performs, and when a run is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plexsvc.ids import JobId, NodeId, TenantId
from plexsvc.scheduler.core.actions import (
    KINDS,
    AnswerOperation,
    CutOver,
    DeploymentChanged,
    DeploymentLost,
    DropCarried,
    DropPayload,
    JobChanged,
    KeepProfile,
    KeepState,
    RefuseOperation,
    ReleaseOperation,
    RelocationChanged,
)
from plexsvc.scheduler.core.events import Event, JobSubmitted, NodeCordoned
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.sim.clients import Alarm, Client, Outside, Post, Posts
from plexsvc.sim.virtual_driver import PERFORM, VirtualDriver
from tests.unit.sim.test_predict import FakeCosts, loops, nodes

TOLD = {AnswerOperation, RefuseOperation, DeploymentChanged, JobChanged}
"""Actions that a client is told."""

DURABLE = {DeploymentLost, KeepState}
"""No simulated deployment is durable."""

FREE = {CutOver, DropCarried, DropPayload, KeepProfile, ReleaseOperation, RelocationChanged}
"""Actions that take no time and answer nobody."""


@dataclass(slots=True)
class Clock(Client):
    """Wakes every second, without end."""

    is_background: ClassVar[bool] = True
    rings: int = 0

    @property
    def is_done(self) -> bool:
        return True

    def begin(self) -> Posts:
        return (Alarm(1_000_000),)

    def woken(self, tag: int, *, now_us: int) -> Posts:
        self.rings += 1
        return (Alarm(now_us + 1_000_000),)


def driver_of(*clients: Client, end_us: int = 1 << 62) -> VirtualDriver:
    core = Scheduler(limits=Limits(), epoch=1)
    return VirtualDriver(core=core, costs=FakeCosts(), clients=clients, end_us=end_us)


def test_every_action_is_performed_or_free() -> None:
    assert set(PERFORM) == KINDS - TOLD - FREE - DURABLE


def test_a_run_is_over_without_what_goes_on_in_the_background() -> None:
    clock = Clock()
    driver = driver_of(clock, nodes(1), *loops(2, cycles=30))
    assert driver.run()
    assert clock.rings == driver.now_us // 1_000_000 > 3


def test_nothing_happens_from_the_end_on() -> None:
    clock, (job,) = Clock(), loops(1, cycles=1000)
    driver = driver_of(clock, nodes(1), job, end_us=5_000_000)
    assert not driver.run()
    assert 4_000_000 < driver.now_us < 5_000_000
    assert clock.rings == 4


def test_an_alarm_may_be_for_another_client() -> None:
    @dataclass(slots=True)
    class Bell(Client):
        wakes: Client

        @property
        def is_done(self) -> bool:
            return True

        def begin(self) -> Posts:
            return (Alarm(5, 7, self.wakes),)

    @dataclass(slots=True)
    class Sleeper(Client):
        tag: int = 0

        @property
        def is_done(self) -> bool:
            return self.tag > 0

        def begin(self) -> Posts:
            return ()

        def woken(self, tag: int, *, now_us: int) -> Posts:
            self.tag = tag
            return (Post(now_us, JobSubmitted(job_id=JobId("j"), tenant=TenantId("t"))),)

    sleeper = Sleeper()
    driver = driver_of(sleeper, Bell(sleeper))
    assert driver.run()
    assert (sleeper.tag, list(driver.core.cluster.jobs)) == (7, ["j"])


def test_events_of_one_instant_happen_in_the_order_in_which_they_were_made() -> None:
    seen: list[Event] = []
    made = [NodeCordoned(at_us=3, node_id=NodeId(name)) for name in "abc"]
    driver = driver_of(Outside(events=made))
    driver.watch = lambda event, _: seen.append(event)
    assert driver.run()
    assert [(event.at_us, event.node_id) for event in seen if isinstance(event, NodeCordoned)] == [
        (3, "a"),
        (4, "b"),
        (5, "c"),
    ]

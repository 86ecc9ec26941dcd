"""Nobody starves: neither on a device, whatever the others do there, nor waiting for a place.

On a device, the bound of `planning/runtime_rules.py`: `STARVE_FACTOR * S'`, plus what runs or
moves then, plus one operation with its switch of every other job; while the group's duty is below
1. S' is what was measured; of a job's first operation of each kind, the prior if that is longer.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from plexsvc.ids import DeploymentId, ResidentId, UnitId
from plexsvc.scheduler.core.actions import Action, MoveState, StartOperation
from plexsvc.scheduler.core.device.learning import PRIOR_SERVICE_US
from plexsvc.scheduler.core.events import Acknowledged
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import POLICIES
from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US, Demand, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.planning.runtime_rules import STARVE_FACTOR
from plexsvc.scheduler.core.planning.waiting import in_order
from plexsvc.scheduler.core.vocabulary import OperationKind
from tests.fakes.fake_world import FakeWorld
from tests.rigs.core_invariants import check_board

MOVE_US = 2_000
TICKS_US = 100
"""Each event takes a microsecond of the virtual clock; no wait sees this many."""
KINDS = [OperationKind.FORWARD_BACKWARD, OperationKind.STEP]


@dataclass(slots=True)
class Client:
    """A job that submits `burst` operations at once, waits for all, thinks, and goes on."""

    name: str
    run_us: int
    think_us: int
    burst: int
    seq: int = 0
    left: int = 0


@dataclass(slots=True)
class Play:
    """Clients on one device that holds one of them, under a virtual clock."""

    clients: dict[str, Client]
    world: FakeWorld = field(default_factory=lambda: FakeWorld(limits=Limits(max_gap=10_000)))
    due: list[tuple[int, int, object]] = field(default_factory=list)
    count: itertools.count[int] = field(default_factory=itertools.count)
    waits: list[tuple[str, int, bool]] = field(default_factory=list)

    def run(self, *, until_us: int) -> None:
        """Play to a time; note how long each operation could have run before it did."""
        self.world.join(train=1)
        for name in self.clients:
            self.world.bring_up(name)
            self._at(self.world.now_us + 1, name)
        while self.due and self.due[0][0] < until_us:
            at_us, _, what = heapq.heappop(self.due)
            self.world.now_us = max(self.world.now_us, at_us - 1_000)
            if isinstance(what, str):
                self._submit(self.clients[what])
            elif isinstance(what, StartOperation | MoveState):
                self._report(what)
            else:
                self._fire(at_us)

    def _at(self, at_us: int, what: object) -> None:
        heapq.heappush(self.due, (at_us, next(self.count), what))

    def _submit(self, client: Client) -> None:
        client.left = client.burst
        for at in range(client.burst):
            client.seq += 1
            name = f"{client.name}{client.seq}"
            self._take(self.world.submit(name, job=client.name, seq=client.seq, kind=KINDS[at % 2]))

    def _report(self, order: StartOperation | MoveState) -> None:
        job = self.world.core.view.wpgs[order.wpg_id].job_id
        self._take(self.world.report(order))
        client = self.clients[job]
        if isinstance(order, StartOperation):
            client.left -= 1
            if not client.left:
                deployment_id = DeploymentId(f"{client.name}/actor")
                at_us = self.world.tick(1)
                self.world.tell(
                    Acknowledged(at_us=at_us, deployment_id=deployment_id, seq=client.seq)
                )
                self._at(self.world.now_us + client.think_us, client.name)

    def _fire(self, at_us: int) -> None:
        for key in [k for k, t in self.world.timers.items() if k.startswith("linger/")]:
            if self.world.timers[key] <= at_us:
                before = len(self.world.log)
                self.world.fire(key)
                self._take(self.world.log[before:])

    def _take(self, actions: list[Action]) -> None:
        cluster = self.world.core.view
        for action in actions:
            if isinstance(action, StartOperation):
                operation = cluster.operations[action.operation_id]
                assert operation.eligible_us is not None
                wait_us = operation.started_us - operation.eligible_us
                is_first = operation.seq in range(1, len(KINDS) + 1)
                self.waits.append((operation.job_id, wait_us, is_first))
                self._at(self.world.now_us + self.clients[operation.job_id].run_us, action)
            elif isinstance(action, MoveState):
                self._at(self.world.now_us + MOVE_US, action)
        for key, at_us in self.world.timers.items():
            if key.startswith("linger/") and at_us > self.world.now_us:
                self._at(at_us, None)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(3_000, 60_000), st.integers(11, 40), st.integers(1, 5)),
        min_size=2,
        max_size=4,
    )
)
@example([(38_001, 11, 5), (38_001, 11, 5), (3_000, 11, 2)])
@example([(60_000, 11, 5), (60_000, 11, 5), (3_000, 11, 2)])
def test_no_operation_waits_beyond_its_bound(facts: list[tuple[int, int, int]]) -> None:
    switch_us = 4 * (MOVE_US + 1_000)
    clients = {}
    for name, (run_us, idle_tenths, burst) in zip("abcd", facts, strict=False):
        busy_us = burst * run_us + 2 * switch_us
        think_us = busy_us * len(facts) * idle_tenths // 10
        clients[name] = Client(name=name, run_us=run_us, think_us=think_us, burst=burst)
    play = Play(clients)
    longest_us = max(client.think_us for client in clients.values())
    play.run(until_us=max(2_500_000, 4 * longest_us))  # everybody comes more than twice
    assert len(play.waits) > len(clients)
    slowest_us = max(client.run_us for client in clients.values()) + switch_us
    for job, waited_us, is_first in play.waits:
        run_us = clients[job].run_us
        own_us = (max(run_us, PRIOR_SERVICE_US) if is_first else run_us) + switch_us
        bound_us = STARVE_FACTOR * own_us + (len(clients) + 1) * slowest_us
        bound_us += TICKS_US
        assert waited_us <= bound_us, (job, waited_us, bound_us)


PATIENCE = 4
POLICY = replace(POLICIES["plex"], patience_ppm=(PATIENCE - 1) * PPM, max_jobs=1)
HOUR_US = 3600 * SECOND_US
QUARTER_US = HOUR_US // 4


def placed_us(jobs: list[tuple[int, int, int]], *, units: int) -> list[tuple[int, int, int]]:
    """Play jobs of an hour: the quarters of an hour until each comes, its units and its priority.

    Return when each came and was placed, and how many waited before it when it had waited so long
    that none who comes later goes first.
    """
    rights_us = (PATIENCE - 1) * HOUR_US * (2 if any(priority for _, _, priority in jobs) else 1)
    rooms = [UnitRoom(unit_id=UnitId(f"n{at}"), host=f"n{at}") for at in range(units)]
    planner = Planner(Board(rooms), policy=POLICY)
    segment = Segment(phase="update", offset_us=0, duration_us=20 * SECOND_US)
    profile = Profile(period_us=100 * SECOND_US, segments=(segment,))
    came: dict[ResidentId, int] = {}
    start: dict[ResidentId, int] = {}
    ahead: dict[ResidentId, int] = {}
    now_us, due = 0, list(jobs)
    next_us = due[0][0] * QUARTER_US
    while due or planner.waiting:
        for key in [k for k, at_us in start.items() if at_us + HOUR_US == now_us]:
            planner.remove(key)
        while due and next_us <= now_us:
            key = ResidentId(f"j{len(came)}")
            came[key] = now_us
            _, num_units, priority = due.pop(0)
            planner.submit(
                Demand(
                    resident_id=key,
                    num_units=num_units,
                    priority=priority,
                    profile=profile,
                    arrived_us=now_us,
                    expected_us=HOUR_US,
                )
            )
            next_us += due[0][0] * QUARTER_US if due else 0
        for placed in planner.admit(now_us):
            start[placed.resident_id] = now_us
        check_board(planner.board)
        ordered = in_order(planner.waiting.values(), policy=POLICY, now_us=now_us)
        for before, demand in enumerate(ordered):
            if now_us - came[demand.resident_id] == rights_us:
                ahead.setdefault(demand.resident_id, before)
        now_us += QUARTER_US
    return [(came[key], start[key], ahead.get(key, 0)) for key in came]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from([0, 0, 10, 1000])),
        min_size=1,
        max_size=60,
    )
)
@example([(1, 1, 0)] * 8 + [(1, 4, 0)] + [(1, 1, 0)] * 100)
@example([(1, 1, 0)] * 8 + [(1, 4, 0), (0, 3, 0), (0, 4, 0)] + [(1, 1, 0), (0, 2, 0)] * 60)
@example([(1, 1, 10)] * 8 + [(1, 4, 0)] + [(1, 1, 10)] * 100)
@example([(0, 4, 10)] * 4 + [(1, 1, 0), (0, 4, 0)] + [(4, 4, 10), (0, 4, 1000)] * 30)
def test_every_job_that_fits_the_cluster_is_placed_within_its_bound(
    jobs: list[tuple[int, int, int]],
) -> None:
    """A job waits for its patience, or twice that behind priorities.

    Then each before it ends a run, and behind priorities the one that units are kept for.
    """
    patiences = 2 if any(priority for _, _, priority in jobs) else 1
    for came_us, start_us, ahead in placed_us(jobs, units=4):
        runs = ahead + patiences
        bound_us = patiences * (PATIENCE - 1) * HOUR_US + runs * (HOUR_US + QUARTER_US)
        assert start_us - came_us <= bound_us, (came_us, start_us, ahead)

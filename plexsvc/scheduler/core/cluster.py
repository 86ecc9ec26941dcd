"""The cluster as the core knows it, in slices: a room of the core is given what it may change.

`Queues`, `Placement` and `Devices` are the slices of `core/queues`, `core/place` and `core/device`.
Each can order actions (`emit`, `set_timer`), ask for another look (`touch`), and read who there is.
A mapping is read, a dictionary is changed. `Devices` holds the other two, since granting a device
ends waits in queues and follows the plan. `Lives` is `Devices` whose roll may be changed: for
what makes or drops jobs, deployments, WPGs and relocations in `core/life` and `core/relocate`; the
rest of those rooms has `Devices`. `ClusterState` is the whole, seen by `machine` and by who only
reads.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, TenantId, WpgId
from plexsvc.newest import Newest
from plexsvc.scheduler.core.accounts import Charge, Usage
from plexsvc.scheduler.core.actions import Action, SetTimer
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.memory import HostMemory
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import live_policy
from plexsvc.scheduler.core.planning.profiler import ProfileBook, ProfileKey
from plexsvc.scheduler.core.planning.shares import Shares
from plexsvc.scheduler.core.state import (
    DeploymentEntry,
    Device,
    JobEntry,
    Operation,
    Prefetches,
    Wpg,
)
from plexsvc.scheduler.core.timeline import Timeline
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import Fault, JobState, Place

MAX_CHARGES: Final = 4096

KEPT_PROFILES: Final = 1000
"""Cycles of earlier runs that are kept; where there may be more jobs, as many as those."""

_HAS_NEWS: Final = attrgetter("has_news")  # of each planner after each event


@dataclass(slots=True, kw_only=True)
class Turn:
    """The event in hand: its time, what follows from it, which WPGs it concerns, what it cost."""

    epoch: int
    limits: Limits
    now_us: int = 0
    actions: list[Action] = field(default_factory=list)
    dirty: dict[WpgId, None] = field(default_factory=dict)
    charges: deque[Charge] = field(default_factory=lambda: deque(maxlen=MAX_CHARGES))
    """Those of the last minute: the bill is read every two seconds."""


@dataclass(slots=True, kw_only=True)
class Roll:
    """Who there is."""

    jobs: dict[JobId, JobEntry] = field(default_factory=dict)
    ended: OrderedDict[JobId, JobState] = field(default_factory=OrderedDict)
    used: OrderedDict[JobId, tuple[TenantId, dict[str, Usage]]] = field(default_factory=OrderedDict)
    """What the jobs that ended last have used."""
    deployments: dict[DeploymentId, DeploymentEntry] = field(default_factory=dict)
    relocating: dict[DeploymentId, None] = field(default_factory=dict)
    following: dict[DeploymentId, None] = field(default_factory=dict)
    """Rollouts that generate where their job trains, which trains elsewhere by now."""
    wpgs: dict[WpgId, Wpg] = field(default_factory=dict)
    last_wpg_no: int = 0


class Slice:
    """What every room may do: read the time and who there is, order actions, ask for a look."""

    def __init__(self, turn: Turn, roll: Roll) -> None:
        self.turn = turn
        self.limits = turn.limits
        self.jobs: Mapping[JobId, JobEntry] = roll.jobs
        self.deployments: Mapping[DeploymentId, DeploymentEntry] = roll.deployments
        self.relocating: Mapping[DeploymentId, None] = roll.relocating
        self.wpgs: Mapping[WpgId, Wpg] = roll.wpgs

    @property
    def now_us(self) -> int:
        """Return the time of the event in hand."""
        return self.turn.now_us

    def emit(self, action: Action) -> None:
        """Order something."""
        self.turn.actions.append(action)

    def set_timer(self, timer: Timer, of: str | bytes, *, at_us: int) -> None:
        """Have a timer fire at `at_us`; setting it again replaces the time."""
        self.turn.actions.append(SetTimer(key=timer.key(of), at_us=at_us))

    def touch(self, wpg_id: WpgId | None) -> None:
        """Have `grants` look again at a WPG and those it shares devices with."""
        if wpg_id is not None:
            self.turn.dirty[wpg_id] = None

    def wpg_of(self, deployment: DeploymentEntry) -> Wpg | None:
        """Return the deployment's current WPG, if it has one."""
        return None if deployment.wpg_id is None else self.wpgs.get(deployment.wpg_id)

    def is_current(self, wpg: Wpg) -> bool:
        """Whether a WPG runs its deployment's operations; if not, it is coming or leaving."""
        return self.deployments[wpg.deployment_id].wpg_id == wpg.wpg_id

    def is_leaving(self, wpg: Wpg) -> bool:
        """Whether a WPG neither runs its deployment's operations nor will."""
        deployment = self.deployments[wpg.deployment_id]
        if deployment.wpg_id == wpg.wpg_id:
            return False
        return deployment.relocation is None or deployment.relocation.wpg_id != wpg.wpg_id

    def coming(self, job_id: JobId) -> list[Wpg]:
        """Return the WPGs that will replace others of a job, in the order they were ordered."""
        moving = [self.deployments[d] for d in self.relocating]
        return [
            self.wpgs[d.relocation.wpg_id]
            for d in moving
            if d.relocation is not None and d.job_id == job_id
        ]


class Queues(Slice):
    """Operations: those that wait, run or are answered, and what is remembered of others."""

    def __init__(self, turn: Turn, roll: Roll) -> None:
        super().__init__(turn, roll)
        self.operations: dict[OperationId, Operation] = {}


class Placement(Slice):
    """Where deployments are and may be: nodes, the plan, and who waits for a place in it."""

    def __init__(self, turn: Turn, roll: Roll, *, devices: Mapping[Place, Device]) -> None:
        super().__init__(turn, roll)
        self.devices = devices
        self.policy = live_policy(turn.limits)
        self.book = ProfileBook(limit=max(KEPT_PROFILES, turn.limits.max_jobs))
        self.shares = Shares(turn.limits.tenant_weights)
        self.memory = HostMemory()
        self.planners: dict[str, Planner] = {}
        """One a device kind."""

        self.nodes: dict[NodeId, list[Place]] = {}
        """The devices of each node whose lease is held."""

        self.cordoned: dict[NodeId, bool] = {}
        """Nodes that take no further work; the value: whether what is there shall leave."""

        self.unplaced: list[DeploymentId] = []
        self.homeless: dict[tuple[WpgId, int], Fault] = {}
        """Ranks of instances that were on a lost node and wait for a device, and why."""

        self.has_changed = False
        """Whether devices came free or were asked for since those that wait were last looked at."""

        self.looked_us: dict[str, int] = {}
        """When each cause for which deployments move was last looked at (`relocate/movers.py`)."""

        self.look_us = 0
        """When the next of them is due."""

        self.lost = Newest[ProfileKey, int](KEPT_PROFILES)
        """Deployments that lost a node and have not come back, and the groups they lived in."""

        self.short: dict[DeploymentId, None] = {}
        """Leads of sets that found a place when there were too few devices for their instances."""

        self.moved: dict[DeploymentId, None] = {}
        """Deployments booked at places they are still on the way to."""

    @property
    def has_news(self) -> bool:
        """Whether something changed for deployments that wait."""
        return self.has_changed or any(map(_HAS_NEWS, self.planners.values()))

    def planner(self, kind: str) -> Planner:
        """Return the planner of a device kind."""
        known = self.planners.get(kind)
        if known is None:
            board = Board([], shares=self.shares, memory=self.memory, kind=kind)
            known = Planner(board, policy=self.policy, noun=f"{kind} device")
            self.planners[kind] = known
        return known


class Devices(Slice):
    """Devices: who holds them, whose state is there, and what all of that cost."""

    def __init__(
        self,
        turn: Turn,
        roll: Roll,
        *,
        at: dict[Place, Device],
        queues: Queues,
        placement: Placement,
    ) -> None:
        super().__init__(turn, roll)
        self.at = at
        self.queues = queues
        self.placement = placement
        self.order = placement.policy.order
        self.timeline = Timeline()
        self.groups: dict[WpgId, tuple[WpgId, ...]] = {}
        """Of each WPG those that share devices with it, directly or through others."""

        self.waits: dict[tuple[JobId, JobId], int] = {}
        """Microseconds a job waited while another (or its own switch) had its devices."""

        self.prefetches = Prefetches()
        self.last_lease_no = 0
        self._last_move_no = 0

    def new_move_id(self) -> MoveId:
        """Return an id that no move had before."""
        self._last_move_no += 1
        return MoveId(f"{self.turn.epoch}.{self._last_move_no}")


class Lives(Devices):
    """Who there is, to be changed, too: jobs, deployments, WPGs and relocations come and go."""

    roll: Roll


class ClusterState(Slice):
    """Everything the core knows."""

    def __init__(self, *, limits: Limits, epoch: int) -> None:
        turn, roll = Turn(epoch=epoch, limits=limits), Roll()
        super().__init__(turn, roll)
        self.roll = roll
        at: dict[Place, Device] = {}
        self.queues = Queues(turn, roll)
        self.placement = Placement(turn, roll, devices=at)
        self.lives = Lives(turn, roll, at=at, queues=self.queues, placement=self.placement)
        self.lives.roll = roll
        self.devices: Devices = self.lives

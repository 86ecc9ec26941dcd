"""Books of a run of the core: stays, switches, losses, drains and occupied nodes of a trace's jobs.

The scheduler's events and actions tell all of it; what a job did by itself, its client writes down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import DeploymentId, NodeId, OperationId, UnitId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core import actions, events
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.hosts import ParkingRoom
from plexsvc.sim.records import Drained, Lost, Record, StateCopy, Stay

_TELL_NOTHING: Final[frozenset[type]] = frozenset(
    {events.OperationSubmitted, events.OperationFinished, events.TimerFired}
)
"""What most events are, and what nothing is noted of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """Ranks, from their start until nothing is left of them."""

    deployment_id: DeploymentId
    places: Sequence[Place]
    nodes: tuple[UnitId, ...]


@dataclass(slots=True, kw_only=True)
class Books:
    """The records that only events, actions and the core's view tell."""

    view: ClusterView
    cluster: SimCluster
    memory: ParkingRoom
    record_of: dict[DeploymentId, Record] = field(default_factory=dict)
    """The training deployments and their jobs."""
    rollout_record_of: dict[DeploymentId, Record] = field(default_factory=dict)
    """The rollout deployments on nodes of the cluster and their jobs."""

    now_us: int = 0
    """When the last event happened."""
    switches: int = 0
    node_us: int = 0
    """Node-microseconds for which somebody had a place."""
    device_us: int = 0
    """The same of all devices of those nodes."""
    cost: float = 0.0
    """The same by what they cost, in microseconds of a device with a price of 1."""
    drains: dict[NodeId, Drained] = field(default_factory=dict)
    losses: list[Lost] = field(default_factory=list)

    _lives: dict[WpgId, _Life] = field(default_factory=dict)
    _taken: dict[Place, int] = field(default_factory=dict)
    _devices: int = 0
    _price: float = 0.0
    _loading: dict[WpgId, tuple[int, bool]] = field(default_factory=dict)
    """Since when somebody's state is brought in, its victims' way out included, and whether
    ahead."""
    _carrying: dict[DeploymentId, tuple[int, str]] = field(default_factory=dict)
    """Since when a state is copied, and why."""
    _running: dict[OperationId, tuple[WpgId, int]] = field(default_factory=dict)
    _number_of: dict[UnitId, int] = field(default_factory=dict)
    _charged_us: int = 0

    def place_of(self, deployment_id: DeploymentId) -> tuple[tuple[UnitId, ...], int]:
        """Return the nodes of a training deployment, and the bytes of it on the disk of each."""
        wpg_id = self.view.deployments[deployment_id].wpg_id
        assert wpg_id is not None, deployment_id
        return self._lives[wpg_id].nodes, self.memory.disk_bytes(wpg_id)

    def watch(self, event: events.Event, ordered: Sequence[actions.Action]) -> None:
        """Note an event that was decided, what was ordered, and what is so since then."""
        self.now_us = event.at_us
        if type(event) not in _TELL_NOTHING:
            self._note_event(event)
        for action in ordered:
            self._note_action(action)
        if self.drains and any(map(self._is_draining, self.drains)):
            lived_on = {place.node_id for life in self._lives.values() for place in life.places}
            for node_id in filter(self._is_draining, list(self.drains)):
                if node_id not in lived_on:
                    self.drains[node_id].empty_us = self.now_us

    def accrue(self) -> None:
        """Charge the nodes that are held, for the time until now."""
        for_us, self._charged_us = self.now_us - self._charged_us, self.now_us
        self.node_us += len(self._taken) * for_us
        self.device_us += self._devices * for_us
        self.cost += self._price * for_us

    def _note_event(self, event: events.Event) -> None:
        match event:
            case events.WpgForgotten():
                life = self._lives.pop(event.wpg_id)
                self.memory.leave(event.wpg_id)
                if self._holder_of(life.deployment_id) is not None:
                    for place in life.places:
                        self._taken[place] -= 1
                        if not self._taken[place]:
                            self._hold(place, -1)
            case events.ResidencyMoved():
                self._loaded(event.wpg_id)
            case events.NodeCordoned(is_drained=True, node_id=node_id):
                self.drains[node_id] = Drained(node_id=node_id, asked_us=self.now_us)
            case events.NodeUncordoned() if self._is_draining(event.node_id):
                del self.drains[event.node_id]
            case events.NodeLost():
                self.losses.append(Lost(node_id=event.node_id, at_us=self.now_us))
            case events.NodeJoined():
                for lost in self.losses:
                    if lost.node_id == event.node_id and lost.back_us is None:
                        lost.back_us = self.now_us
            case _:
                pass

    def _note_action(self, action: actions.Action) -> None:
        match action:
            case actions.StartOperation():
                self._running[action.operation_id] = action.wpg_id, self.now_us
            case actions.AnswerOperation():
                self._running.pop(action.operation_id, None)
            case actions.RefuseOperation():
                self._refused(action)
            case actions.MoveState(to=Residency.DEVICE):
                switch = self.view.wpgs[action.wpg_id].switch
                assert switch is not None, action
                self._loading[action.wpg_id] = switch.started_us, switch.operation_id is None
            case actions.SpawnWpg():
                self._spawning(action)
            case actions.StopWpg():
                self._loaded(action.wpg_id)
            case actions.CarryState():
                relocation = self.view.deployments[action.deployment_id].relocation
                assert relocation is not None, action
                self._carrying[action.deployment_id] = self.now_us, relocation.reason
            case actions.CutOver():
                # A job lives elsewhere now, and was held while its state was copied.
                holder = self._holder_of(action.deployment_id)
                if holder is not None:
                    self._stay(holder, action.to_wpg_id)
                if action.deployment_id in self.record_of:
                    since_us, why = self._carrying.pop(action.deployment_id)
                    move = StateCopy(since_us=since_us, until_us=self.now_us, why=why)
                    self.record_of[action.deployment_id].moves.append(move)
            case _:
                pass

    def _spawning(self, action: actions.SpawnWpg) -> None:
        """Note who has which places, and where a job lives."""
        life = _Life(
            deployment_id=action.deployment_id,
            places=action.places,
            nodes=tuple(UnitId(place.node_id) for place in action.places),
        )
        self._lives[action.wpg_id] = life
        holder = self._holder_of(action.deployment_id)
        if holder is None:
            return
        if action.deployment_id in self.record_of:
            nbytes = holder.job.demand.state_bytes // holder.job.deployments
            self.memory.arrive(action.wpg_id, life.nodes, nbytes=nbytes)
        if action.replaces is None:
            if not holder.restarts:
                holder.start_us = self.now_us  # a job starts when the last deployment has a place
            self._stay(holder, action.wpg_id)
        for place in action.places:
            if place not in self._taken:
                self._hold(place, 1)
            self._taken[place] += 1

    def _holder_of(self, deployment_id: DeploymentId) -> Record | None:
        record = self.record_of.get(deployment_id)
        return record or self.rollout_record_of.get(deployment_id)

    def _refused(self, action: actions.RefuseOperation) -> None:
        """Note how long an operation ran in vain."""
        wpg_id, since_us = self._running.pop(action.operation_id, (None, 0))
        life = None if wpg_id is None else self._lives.get(wpg_id)
        if life is not None and life.deployment_id in self.record_of:
            self.record_of[life.deployment_id].lost.append((since_us, self.now_us))

    def _stay(self, record: Record, wpg_id: WpgId) -> None:
        """Note where a job lives: on the nodes of all its deployments that train, or roll out."""
        life = self._lives[wpg_id]
        is_training = life.deployment_id in self.record_of
        alike = self.record_of if is_training else self.rollout_record_of
        nodes, disk_bytes = [*life.nodes], self.memory.disk_bytes(wpg_id)
        for other_id, other in self._lives.items():
            is_beside = other.deployment_id != life.deployment_id
            if is_beside and alike.get(other.deployment_id) is record:
                nodes.extend(other.nodes)
                disk_bytes += self.memory.disk_bytes(other_id)
        group_id = self._number_of.setdefault(nodes[0], len(self._number_of))
        stay = Stay(since_us=self.now_us, group_id=group_id, nodes=tuple(dict.fromkeys(nodes)))
        (record.stays if is_training else record.rollout_stays).append(stay)
        if is_training:
            record.disk_bytes = disk_bytes
            record.host_bytes = record.job.demand.state_bytes - disk_bytes

    def _hold(self, place: Place, sign: int) -> None:
        """Note that a device is somebody's from now on, or nobody's."""
        self.accrue()
        if sign < 0:
            del self._taken[place]
        else:
            self._taken[place] = 0
        group = self.cluster.group_of(place.node_id)
        self._devices += sign * group.devices
        self._price += sign * group.devices * group.price

    def _loaded(self, wpg_id: WpgId) -> None:
        """Note the end of a load: it is done, or its processes are stopped."""
        since_us, is_ahead = self._loading.pop(wpg_id, (None, False))
        if since_us is not None:
            self.switches += 1
            record = self.record_of[self._lives[wpg_id].deployment_id]
            (record.prefetch if is_ahead else record.switch).append((since_us, self.now_us))

    def _is_draining(self, node_id: NodeId) -> bool:
        return node_id in self.drains and self.drains[node_id].empty_us is None

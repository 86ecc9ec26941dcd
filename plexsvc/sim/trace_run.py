"""A trace through the whole core: the same jobs and records as the simulator, decided live.

The simulator holds a job's cycle and asks planning and the groups' runtime directly; here each job
is a client that submits operations, and all of `Scheduler` decides. One host has all training
devices, one device stands for a node of the trace and holds one job's state; each job has a rollout
device. Jobs come with the trace's profiles (`is_warm`), as after earlier runs, or without any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import Action, CarryState, CutOver, MoveState, SpawnWpg
from plexsvc.scheduler.core.events import (
    Event,
    NodeJoined,
    ProfilesLoaded,
    ResidencyMoved,
    WpgForgotten,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import Profile
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.core.planning.runtime import Counts
from plexsvc.scheduler.core.vocabulary import DeviceFacts, Place
from plexsvc.sim.clients import Outside
from plexsvc.sim.costs import Moved, Spawned, Took, Work
from plexsvc.sim.presets import Workload
from plexsvc.sim.records import Outcome, Record, Stay
from plexsvc.sim.run import Timed
from plexsvc.sim.summary import Summary, summarise
from plexsvc.sim.trace_client import DEVICE_KIND, ROLLOUT_KIND, TraceClient, kinds_of
from plexsvc.sim.virtual_driver import VirtualDriver

HOST: Final = NodeId("host")
FOREVER_US: Final = 10**15
STATE_BYTES: Final = 1 << 30
"""What a job's state takes on a device, which holds just that."""


@dataclass(slots=True, kw_only=True)
class _TraceCosts:
    """Operations as sampled; half a switch to go, half to come; processes come and go at once."""

    durations_us: dict[OperationId, int]
    switch_us: dict[DeploymentId, int]

    def spawn(
        self, deployment_id: DeploymentId, *, places: Sequence[Place], now_us: int
    ) -> Spawned:
        del deployment_id
        return Spawned(ready_us=now_us, device_bytes=(STATE_BYTES,) * len(places))

    def operation(self, work: Work) -> Took:
        duration_us = self.durations_us.pop(work.operation_id, 1)
        return Took(elapsed_us=duration_us, run_us=duration_us)

    def move(self, deployment_id: DeploymentId, *, to: Residency) -> Moved:
        whole_us = self.switch_us[deployment_id]
        half_us = whole_us // 2 if to is Residency.DEVICE else whole_us - whole_us // 2
        return Moved(elapsed_us=half_us, nbytes=STATE_BYTES)

    def carry(self, deployment_id: DeploymentId) -> Moved:
        return Moved(elapsed_us=self.switch_us[deployment_id], nbytes=STATE_BYTES)

    def stop_us(self) -> int:
        return 1

    def forget_us(self) -> int:
        return 1


@dataclass(slots=True, kw_only=True)
class _Books:
    """Keeps the records that only the driver's actions tell: stays, switches, occupied devices."""

    records: dict[DeploymentId, Record]
    counts: Counts = field(default_factory=Counts)
    device_us: int = 0
    _lives: dict[WpgId, SpawnWpg] = field(default_factory=dict)
    _on_device: dict[Place, int] = field(default_factory=dict)
    _loading: dict[WpgId, int] = field(default_factory=dict)
    _carrying: dict[DeploymentId, int] = field(default_factory=dict)
    _last_us: int = 0

    def note(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in one event and what followed."""
        self.device_us += len(self._on_device) * (event.at_us - self._last_us)
        self._last_us = event.at_us
        if isinstance(event, WpgForgotten):
            self._leave(event.wpg_id)
        elif isinstance(event, ResidencyMoved):
            self._moved(event)
        for action in actions:
            if isinstance(action, SpawnWpg):
                self._arrive(action, at_us=event.at_us)
            elif isinstance(action, CarryState):
                self._carrying[action.deployment_id] = event.at_us
            elif isinstance(action, CutOver):
                self._cut_over(action, at_us=event.at_us)
            elif isinstance(action, MoveState) and action.to is Residency.DEVICE:
                self._loading[action.wpg_id] = event.at_us

    def _arrive(self, action: SpawnWpg, *, at_us: int) -> None:
        record = self.records.get(action.deployment_id)
        if record is None:
            return  # a rollout deployment
        self._lives[action.wpg_id] = action
        if action.replaces is None:
            self._stay(action, at_us=at_us)
        if record.start_us is None:
            record.start_us = at_us
        for place in action.places:
            self._on_device[place] = self._on_device.get(place, 0) + 1

    def _cut_over(self, action: CutOver, *, at_us: int) -> None:
        """Note a job's move: it was held while its state was copied, and lives elsewhere now."""
        since_us = self._carrying.pop(action.deployment_id, at_us)
        self.records[action.deployment_id].moves.append((since_us, at_us))
        self._stay(self._lives[action.to_wpg_id], at_us=at_us)

    def _stay(self, action: SpawnWpg, *, at_us: int) -> None:
        """Note that a job lives on a WPG's devices: from its start, or since it took over."""
        units = tuple(map(placing.unit, action.places))
        stay = Stay(since_us=at_us, group_id=action.places[0].device, nodes=units)
        record = self.records[action.deployment_id]
        record.stays.append(stay)
        record.host_bytes = record.job.demand.state_bytes  # whoever is not on its device is there

    def _leave(self, wpg_id: WpgId) -> None:
        life = self._lives.pop(wpg_id, None)
        for place in () if life is None else life.places:
            self._on_device[place] -= 1
            if not self._on_device[place]:
                del self._on_device[place]

    def _moved(self, event: ResidencyMoved) -> None:
        since_us = self._loading.pop(event.wpg_id, None)
        if since_us is None:
            return
        self.counts.switches += 1
        record = self.records[self._lives[event.wpg_id].deployment_id]
        record.switch.append((since_us, event.at_us))


def play_live(workload: Workload, *, policy: Policy, seed: int, is_warm: bool = True) -> Timed:
    """Return what the whole core makes of a workload under the live form of a policy.

    Faults of the cluster are not played. Devices come in aligned power-of-two blocks, so gangs of
    other sizes leave some idle.

    Raises:
        PlexError: `no_placement` when the cluster cannot hold a job.
    """
    began = time.perf_counter()
    costs = _TraceCosts(durations_us={}, switch_us={})
    clients = []
    for job in workload.jobs:
        record = Record(job=job, alone_us=job.alone_us(job.rollout_us(seed)))
        client = TraceClient(record=record, seed=seed, durations_us=costs.durations_us)
        costs.switch_us[client.deployment_id] = job.demand.profile.switch_us
        clients.append(client)
    books = _Books(records={client.deployment_id: client.record for client in clients})
    core = Scheduler(limits=patient_limits(len(clients), policy=policy), epoch=1)
    driver = VirtualDriver(
        core=core,
        costs=costs,
        clients=[Outside(events=_cluster_events(workload, is_warm=is_warm)), *clients],
        watch=books.note,
    )
    is_complete = driver.run()
    records = tuple(client.record for client in clients)
    if not is_complete:
        raise _never_ended(records, core)
    prefetches = core.cluster.prefetches
    books.counts.prefetches = prefetches.ordered
    books.counts.prefetch_hits, books.counts.prefetch_wasted = prefetches.hits, prefetches.wasted
    outcome = Outcome(
        policy=f"{policy.name} (live core)",
        records=records,
        counts=books.counts,
        events=driver.events,
        group_node_us=books.device_us,
        pruned_share=0.0,
    )
    return Timed(outcome=outcome, wall_s=time.perf_counter() - began)


def compare_live(
    workload: Workload, *, policy: Policy, seed: int, isolated: Timed, is_warm: bool
) -> tuple[Summary, Outcome]:
    """Return the summary of the whole core's run against the simulator's `isolated`."""
    timed = play_live(workload, policy=policy, seed=seed, is_warm=is_warm)
    summary = summarise(
        timed.outcome,
        isolated=isolated.outcome,
        cluster=workload.cluster,
        seed=seed,
        wall_s=timed.wall_s,
    )
    return summary, timed.outcome


def patient_limits(num_jobs: int, *, policy: Policy) -> Limits:
    """Return limits of a policy under which no job of a trace is refused for waiting."""
    return Limits(
        max_jobs=num_jobs,
        policy=policy.name,
        max_deployments_per_group=policy.max_jobs,
        duty_cap_ppm=policy.duty_cap_ppm,
        target_slowdown_ppm=policy.target_slowdown_ppm,
        critical_target_ppm=policy.critical_target_ppm,
        placement_timeout_us=FOREVER_US,
        operation_timeout_us=FOREVER_US,
        spawn_timeout_us=FOREVER_US,
        gap_timeout_us=FOREVER_US,
    )


def _never_ended(records: Sequence[Record], core: Scheduler) -> PlexError:
    job_ids = [record.job.demand.resident_id for record in records if record.finish_us is None]
    first = DeploymentId(f"{job_ids[0]}/actor")
    deployment = core.cluster.deployments.get(first)
    why = "it ended early" if deployment is None else placing.why(core.cluster, deployment)
    return PlexError(
        ErrorCode.NO_PLACEMENT,
        f"{len(job_ids)} of {len(records)} jobs never ended, {job_ids[0]} first: {why}",
    )


def _cluster_events(workload: Workload, *, is_warm: bool) -> list[Event]:
    """Return the profiles of earlier runs, if there were any, and the node of all devices."""
    devices = [(DEVICE_KIND, workload.cluster.nodes), (ROLLOUT_KIND, len(workload.jobs))]
    kinds = [kind for kind, count in devices for _ in range(count)]
    facts = tuple(
        DeviceFacts(index=at, kind=kind, bytes_total=STATE_BYTES) for at, kind in enumerate(kinds)
    )
    joined = NodeJoined(at_us=0, node_id=HOST, devices=facts, host_bytes=FOREVER_US)
    if not is_warm:
        return [joined]
    kept = tuple(
        KeptProfile(
            key=ProfileKey(
                tenant=job.demand.tenant,
                model="",
                layout="",
                name=f"{job.demand.resident_id}/actor",
            ),
            profile=_as_live(job.demand.profile),
            at_us=0,
        )
        for job in workload.jobs
    )
    return [ProfilesLoaded(at_us=0, profiles=kept), joined]


def _as_live(profile: Profile) -> Profile:
    """Return a trace's profile with the phases by which the core will see it."""
    kinds = kinds_of(profile)
    segments = tuple(replace(s, phase=kinds[s.phase]) for s in profile.segments)
    return replace(profile, segments=segments)

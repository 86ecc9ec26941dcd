"""Invariants of the scheduler core, which hold after every event, and of its planning board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from plexsvc.ids import UnitId
from plexsvc.residency import MOVING, ON_DEVICE, Residency
from plexsvc.scheduler.core.cluster import ClusterState
from plexsvc.scheduler.core.device.space import resident_bytes
from plexsvc.scheduler.core.place import demands
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group, connected
from plexsvc.scheduler.core.planning.memory import HostMemory, Use
from plexsvc.scheduler.core.state import HELD, DeploymentEntry, Device, Wpg
from plexsvc.scheduler.core.vocabulary import (
    MANAGED_KINDS,
    TERMINAL,
    OperationKind,
    OperationState,
    WpgState,
)


def check(cluster: ClusterState) -> None:
    """Assert every invariant of the core."""
    for device in cluster.devices.at.values():
        _check_device(cluster, device)
    for wpg in cluster.wpgs.values():
        _check_wpg(cluster, wpg)
    for deployment in cluster.deployments.values():
        _check_order(cluster, deployment)
        _check_booking(cluster, deployment)
    for operation in cluster.queues.operations.values():
        deployment = cluster.deployments[operation.deployment_id]
        runs_on = None if operation.wpg_id is None else cluster.wpgs.get(operation.wpg_id)
        is_first = runs_on is not None and runs_on.initialize is operation
        is_pending = is_first or deployment.pending.get(operation.seq) is operation
        is_running = runs_on is not None and (
            (operation.operation_id in runs_on.running)
            + (operation.operation_id in runs_on.writing)
        )
        is_over = operation.state in TERMINAL
        assert is_pending + is_running + is_over == 1, operation
    for deployment in cluster.deployments.values():
        _check_relocation(cluster, deployment)
    assert not cluster.turn.dirty, cluster.turn.dirty


def _check_device(cluster: ClusterState, device: Device) -> None:
    assert resident_bytes(cluster.devices, device) <= device.bytes_total, device
    for wpg_id, rank in device.ranks.items():
        wpg = cluster.wpgs[wpg_id]
        assert (wpg.places[rank], wpg.devices[rank]) == (device.place, device), (wpg_id, device)
    executing = [
        wpg_id
        for wpg_id in device.ranks
        if any(op.needs_device for op in cluster.wpgs[wpg_id].running.values())
        and device.ranks[wpg_id] not in cluster.wpgs[wpg_id].left
    ]
    assert len(executing) <= 1, (device, executing)
    if executing:
        assert device.holder == executing[0], (device, executing)
    if device.holder is not None:
        holder = cluster.wpgs[device.holder]
        is_stopping = holder.state is WpgState.STOPPING or holder.is_lost
        assert holder.switch is not None or holder.running or is_stopping, (device, holder)
        assert holder.lease_no == device.lease_no, (device, holder)


def _check_wpg(cluster: ClusterState, wpg: Wpg) -> None:
    is_between = wpg.residency in MOVING
    assert is_between or wpg.move_id is None, wpg
    # One whose move broke off stays between the tiers until it is forgotten.
    is_going = wpg.is_lost or wpg.state in {WpgState.STOPPING, WpgState.FORGETTING}
    assert wpg.move_id is not None or is_going or not is_between, wpg
    assert wpg.lease_no <= cluster.devices.last_lease_no, wpg
    kinds = [operation.kind for operation in wpg.running.values()]
    if any(operation.needs_device for operation in wpg.running.values()):
        assert wpg.residency in {Residency.DEVICE, Residency.BUILDING}, wpg
    if not cluster.is_current(wpg):
        assert set(kinds) <= {OperationKind.INITIALIZE}, wpg
    if cluster.is_leaving(wpg):
        assert not kinds, wpg
        assert not wpg.writing, wpg
        assert wpg.initialize is None, wpg
    assert len(kinds) < 2 or set(kinds) == {OperationKind.GENERATE}, wpg
    if wpg.running:
        assert wpg.move_id is None, wpg
    if wpg.left:
        assert wpg.is_shared, wpg
        assert wpg.residency in ON_DEVICE, wpg
        assert len(wpg.left) < len(wpg.places), wpg
    if wpg.running or wpg.writing:
        assert wpg.state is WpgState.READY, wpg
    assert all(operation.kind in MANAGED_KINDS for operation in wpg.writing.values()), wpg
    if wpg.switch is not None and wpg.switch.operation_id is not None:
        granted = cluster.queues.operations[wpg.switch.operation_id]
        assert granted.state is OperationState.GRANTED, (wpg, granted)


def _check_relocation(cluster: ClusterState, deployment: DeploymentEntry) -> None:
    relocation = deployment.relocation
    assert (relocation is not None) == (deployment.deployment_id in cluster.relocating), deployment
    if relocation is None:
        return
    coming = cluster.wpgs[relocation.wpg_id]
    assert coming.deployment_id == deployment.deployment_id, (deployment, coming)
    assert not cluster.is_current(coming), deployment
    if relocation.stage in HELD:
        wpg = cluster.wpg_of(deployment)
        assert wpg is not None, deployment
        assert not wpg.running, deployment
        assert wpg.switch is None, wpg


def _check_order(cluster: ClusterState, deployment: DeploymentEntry) -> None:
    limits = cluster.limits
    assert len(deployment.pending) <= limits.max_pending_per_wpg + 1, deployment
    assert all(seq >= deployment.next_seq for seq in deployment.pending), deployment
    came = deployment.consumed | set(deployment.pending)
    assert len(came) == len(deployment.consumed) + len(deployment.pending), deployment
    assert came.issuperset(range(deployment.next_seq, deployment.complete_to)), deployment
    wpg = cluster.wpg_of(deployment)
    assert (deployment.wpg_id is None) == (wpg is None), deployment
    if wpg is not None:
        assert wpg.deployment_id == deployment.deployment_id, (wpg, deployment)
        under_way = [*wpg.running.values(), *wpg.writing.values()]
        assert all(o.seq < deployment.next_seq for o in under_way), deployment


def _check_booking(cluster: ClusterState, deployment: DeploymentEntry) -> None:
    """Assert that a deployment that is not on its way is booked where its processes are."""
    wpg = cluster.wpg_of(deployment)
    is_waiting = deployment.deployment_id in cluster.placement.unplaced
    planner, key = demands.planner_of(cluster.placement, deployment)
    if is_waiting:
        assert all(cluster.deployments[d].wpg_id is None for d in deployment.declared_with)
    if deployment.is_rollout:
        return
    is_queued = is_waiting and demands.is_queued(cluster.placement, deployment)
    assert is_queued == (key in planner.waiting), deployment
    assert (wpg is not None) == demands.is_placed(cluster.placement, deployment), deployment
    if wpg is not None and deployment.deployment_id not in cluster.placement.moved:
        booked = planner.group_of(key).residents[key].units
        assert booked == tuple(place.unit for place in wpg.places), (deployment, booked)


def check_board(board: Board) -> None:
    """Assert that groups agree with their jobs, and that each unit is in one place."""
    groups = board.groups.values()
    for group in groups:
        _check_group(group, cordoned=board.cordoned)
    assert board.group_at == {n: g.group_id for g in groups for n in g.units}
    assert board.group_of == {j: g.group_id for g in groups for j in g.residents}
    for size, same in board.by_size.items():
        assert same == {g.group_id: g for g in groups if g.size == size}, size
    assert board.out <= board.cordoned, board.out
    held = {unit for units in board.exclusive.values() for unit in units}
    seen = [*board.idle, *board.group_at, *held, *board.out]
    assert sorted(seen) == sorted(board.rooms), "a unit is in two places or in none"
    memory = board.memory
    for resident in (r for group in groups for r in group.residents.values()):
        name, units, demand = resident.demand.resident_id, resident.units, resident.demand
        for use, nbytes in ((Use.STATE, demand.state_bytes), (Use.VERSIONS, demand.version_bytes)):
            wanted = memory._by_host(units, nbytes)
            assert wanted == memory._reserved.get((use, name), {}), (use, name, wanted)
    check_memory(memory)


def _check_group(group: Group, *, cordoned: Collection[UnitId]) -> None:
    """Assert that a group's sums and marks are those of its jobs."""
    residents = group.residents.values()
    if residents:
        assert [units for units, _ in connected(residents)] == [set(group.units)], group.group_id
    assert group.duty_ppm == sum(r.demand.profile.duty_ppm for r in group.residents.values()), group
    assert group.is_closed == any(unit_id in cordoned for unit_id in group.units), group
    assert group.is_uniform == all(len(r.units) == group.size for r in residents), group


def check_memory(memory: HostMemory) -> None:
    """Assert that what is booked on each host is the sum over its owners."""
    wanted: Counter[str] = Counter()
    for holding in {**memory._reserved, **memory._found}:
        wanted.update(memory._of(holding))
    assert +wanted == +memory._booked, (wanted, memory._booked)
    assert min(memory._booked.values(), default=0) >= 0, memory._booked

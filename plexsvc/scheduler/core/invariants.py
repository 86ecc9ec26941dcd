"""What must hold after every event, whatever happened; tests check it, nothing else calls it."""

from __future__ import annotations

from plexsvc.residency import MOVING, Residency
from plexsvc.scheduler.core.device.space import resident_bytes
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.state import HELD, Cluster, Deployment, Device, Wpg
from plexsvc.scheduler.core.transitions import TERMINAL
from plexsvc.scheduler.core.vocabulary import OperationKind, OperationState, WpgState


def check(cluster: Cluster) -> None:
    """Assert every invariant of the core."""
    for device in cluster.devices.values():
        _check_device(cluster, device)
    for wpg in cluster.wpgs.values():
        _check_wpg(cluster, wpg)
    for deployment in cluster.deployments.values():
        _check_order(cluster, deployment)
        _check_booking(cluster, deployment)
    for operation in cluster.operations.values():
        deployment = cluster.deployments[operation.deployment_id]
        is_pending = deployment.pending.get(operation.seq) is operation
        is_running = operation.operation_id in deployment.running
        is_over = operation.state in TERMINAL
        assert is_pending + is_running + is_over == 1, operation
    for deployment in cluster.deployments.values():
        _check_relocation(cluster, deployment)
    assert not cluster.dirty, cluster.dirty


def _check_device(cluster: Cluster, device: Device) -> None:
    assert resident_bytes(cluster, device.place) <= device.bytes_total, device
    executing = [
        wpg_id
        for wpg_id in device.wpgs
        if any(
            op.needs_device
            for op in cluster.deployments[cluster.wpgs[wpg_id].deployment_id].running.values()
        )
    ]
    assert len(executing) <= 1, (device, executing)
    if executing:
        assert device.holder == executing[0], (device, executing)
    if device.holder is not None:
        holder = cluster.wpgs[device.holder]
        deployment = cluster.deployments[holder.deployment_id]
        assert holder.switch is not None or deployment.running, (device, holder)
        assert holder.lease_no == device.lease_no, (device, holder)


def _check_wpg(cluster: Cluster, wpg: Wpg) -> None:
    assert (wpg.move_id is not None) == (wpg.residency in MOVING), wpg
    assert wpg.lease_no <= cluster.last_lease_no, wpg
    deployment = cluster.deployments[wpg.deployment_id]
    assert deployment.wpg_id == wpg.wpg_id, (wpg, deployment)
    on_device = [o for o in deployment.running.values() if o.needs_device]
    if on_device:
        assert wpg.residency in {Residency.DEVICE, Residency.BUILDING}, wpg
    if deployment.running:
        assert wpg.state is WpgState.READY, wpg
        assert wpg.move_id is None, wpg
    if wpg.switch is not None and wpg.switch.operation_id is not None:
        granted = cluster.operations[wpg.switch.operation_id]
        assert granted.state is OperationState.GRANTED, (wpg, granted)


def _check_relocation(cluster: Cluster, deployment: Deployment) -> None:
    relocation = deployment.relocation
    assert (relocation is not None) == (deployment.deployment_id in cluster.relocating), deployment
    if deployment.stands_in_for is not None:
        assert set(deployment.pending) <= {0}, deployment
        assert deployment.wpg_id is not None, deployment
    if relocation is None:
        return
    stand_in = cluster.deployments[relocation.stand_in_id]
    assert stand_in.stands_in_for == deployment.deployment_id, (deployment, stand_in)
    assert not stand_in.is_retired, stand_in
    if relocation.stage in HELD:
        wpg = cluster.wpg_of(deployment)
        assert not deployment.running, deployment
        assert wpg is not None, deployment
        assert wpg.switch is None, wpg


def _check_order(cluster: Cluster, deployment: Deployment) -> None:
    limits = cluster.limits
    assert len(deployment.pending) <= limits.max_pending_per_wpg + 2, deployment
    assert all(seq >= deployment.next_seq for seq in deployment.pending), deployment
    assert all(op.seq < deployment.next_seq for op in deployment.running.values()), deployment
    assert not deployment.consumed & set(deployment.pending), deployment
    kinds = [op.kind for op in deployment.running.values()]
    overlap = len(kinds) > 1
    assert not overlap or all(kind is OperationKind.GENERATE for kind in kinds), deployment


def _check_booking(cluster: Cluster, deployment: Deployment) -> None:
    """Assert that a deployment that is not on its way is booked where its processes are."""
    wpg = cluster.wpg_of(deployment)
    is_waiting = deployment.deployment_id in cluster.unplaced
    planner, key = placing.planner_of(cluster, deployment)
    if deployment.is_rollout or deployment.stands_in_for is not None:
        return
    assert is_waiting == (key in planner.waiting), deployment
    assert (wpg is not None) == placing.is_placed(cluster, deployment), deployment
    if wpg is not None and deployment.deployment_id not in cluster.planning.moved:
        booked = planner.group_of(key).residents[key].units
        assert booked == tuple(map(placing.unit, wpg.places)), (deployment, booked)

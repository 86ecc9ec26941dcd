"""Host memory beside what is planned: versions in use, copies of state, reads from other hosts.

State, kept versions and moves are reserved by the board (`core/planning`). What comes and goes
while a deployment works is booked here, before it is there where the core orders it, and what state
managers and processes have beyond that as the driver finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from plexsvc.ids import MoveId, NodeId
from plexsvc.scheduler.core.accounts import HostBytes
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.events import VersionRead, VersionsHeld
from plexsvc.scheduler.core.planning.memory import Use
from plexsvc.scheduler.core.state import DeploymentEntry, Operation, Wpg
from plexsvc.scheduler.core.vocabulary import COPYING_KINDS, NodeBytes, OperationKind


def keep(placement: Placement, wpg: Wpg) -> None:
    """Charge a job for the host copy of a WPG that trains, from now on."""
    if not wpg.is_rollout:
        nbytes = sum(parked_bytes(placement, wpg))
        wpg.host = HostBytes(nbytes=nbytes, since_us=placement.now_us)


def parked_bytes(placement: Placement, wpg: Wpg) -> tuple[int, ...]:
    """Return what the state of each rank takes of host memory while it is parked."""
    beside = placement.deployments[wpg.deployment_id].optimizer_bytes
    return tuple(nbytes + beside for nbytes in wpg.device_bytes)


def free_bytes(placement: Placement, node_id: NodeId) -> int:
    """Return the host memory of a node that is booked for nothing; 0 for one without devices."""
    memory = placement.memory
    units = [place.unit for place in placement.nodes[node_id]]
    return memory.total_at(units[0]) - memory.booked_at(units[0]) if units else 0


def hold(placement: Placement, event: VersionsHeld) -> None:
    """Note which versions of a deployment lie where, also after its end."""
    deployment = placement.deployments.get(event.deployment_id)
    if deployment is not None:
        charge_versions(placement, deployment, nbytes=sum(one.nbytes for one in event.held))
    freed = placement.memory.note(Use.VERSIONS, event.deployment_id, _table(event.held))
    _look_again(placement, freed)


def charge_versions(placement: Placement, deployment: DeploymentEntry, *, nbytes: int = 0) -> None:
    """Charge a job for a deployment's versions until now; they take `nbytes` from now on."""
    used, now_us = placement.jobs[deployment.job_id].used("memory"), placement.now_us
    used.host_byte_us += deployment.versions.spent(now_us)
    deployment.versions = HostBytes(nbytes=nbytes, since_us=now_us)


def read(placement: Placement, event: VersionRead) -> None:
    """Keep room for what processes read from other hosts: at each pull, until they end."""
    if event.wpg_id in placement.wpgs:
        _reserve(placement, Use.READS, event.wpg_id, _table(event.read))


def copy(placement: Placement, wpg: Wpg, operation: Operation) -> None:
    """Book the copies that an operation is about to work from: each node copies its part."""
    if operation.kind not in COPYING_KINDS:
        return
    deployment = placement.deployments[wpg.deployment_id]
    # Of the largest rank, for each: how much each one has is for its state manager to say.
    each = max(parked_bytes(placement, wpg), default=0)
    if operation.kind is OperationKind.EXPORT and deployment.version_bytes:
        each = min(each, deployment.version_bytes)
    by_host = Counter[str]()
    for place in wpg.places:
        by_host[place.node_id] += each
    _reserve(placement, Use.COPIES, wpg.wpg_id, by_host)


def copied(placement: Placement, wpg: Wpg, operation: Operation) -> None:
    """Free the copies that an operation worked from, or what it read to start from."""
    if operation.kind in COPYING_KINDS:
        _reserve(placement, Use.COPIES, wpg.wpg_id, {})
    elif operation.kind is OperationKind.INITIALIZE:
        _reserve(placement, Use.READS, wpg.wpg_id, {})


def spread(placement: Placement, deployment: DeploymentEntry) -> None:
    """Book what a training deployment has elsewhere than where it is booked.

    The WPG that it moves away from keeps its state, and gets a complete copy of it. One that is
    being stopped has its own until it is forgotten.
    """
    board = placement.planner(deployment.device_kind).board
    key = deployment.resident_id
    home = board.resident(key).units if key in board.group_of else ()
    mine = [w for w in placement.wpgs.values() if w.deployment_id == deployment.deployment_id]
    at_home = [w for w in mine if tuple(place.unit for place in w.places) == home]
    by_host = Counter[str]()
    for wpg in mine:
        if at_home and wpg is at_home[-1]:  # the newest: it is what is booked there
            continue
        each = max(parked_bytes(placement, wpg), default=0)
        if placement.is_current(wpg):
            each = 2 * each + deployment.version_bytes
        for place in wpg.places:
            by_host[place.node_id] += each
    _reserve(placement, Use.MOVES, deployment.resident_id, by_host)


def carry(placement: Placement, wpg: Wpg, move_id: MoveId) -> None:
    """Book a copy that is still being made for a relocation that was given up."""
    by_host = Counter[str]()
    for place, nbytes in zip(wpg.places, parked_bytes(placement, wpg), strict=False):
        by_host[place.node_id] += nbytes
    _reserve(placement, Use.COPIES, move_id, by_host)


def carried(placement: Placement, move_id: MoveId) -> None:
    """Free a copy that came too late, or never."""
    _reserve(placement, Use.COPIES, move_id, {})


def leave(placement: Placement, wpg: Wpg) -> None:
    """Free what is booked for a WPG that is gone, and charge its job for its host copy."""
    used = placement.jobs[wpg.job_id].used("memory")
    used.host_byte_us += wpg.host.spent(placement.now_us)
    wpg.host = HostBytes()
    for use in (Use.COPIES, Use.READS):
        _reserve(placement, use, wpg.wpg_id, {})


def _reserve(placement: Placement, use: Use, owner: str, by_host: Mapping[str, int]) -> None:
    found = {host: nbytes for host, nbytes in by_host.items() if nbytes}
    _look_again(placement, placement.memory.reserve_at(use, owner, found))


def _look_again(placement: Placement, freed: Collection[str]) -> None:
    """Offer the places on some hosts again to those that wait: they may have room now."""
    for planner in placement.planners.values() if freed else ():
        planner.look_at(freed)


def _table(found: tuple[NodeBytes, ...]) -> dict[str, int]:
    return {one.node_id: one.nbytes for one in found if one.nbytes}

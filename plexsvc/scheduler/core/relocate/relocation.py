"""Relocation: the move of a deployment to other devices while its job goes on.

Theory of operation. A second WPG comes up at the new places while the current one works on
(`spawning`). The relocation then waits for a quiet step boundary (`waiting`): nothing runs or
moves, and no gradients are accumulated, since those belong to their ranks. From there on the
deployment is held: its operations keep their places and wait. The state managers copy the complete
state (`carrying`). The second WPG's `Initialize` waits for its devices like any operation and reads
the copy (`restoring`). When it is applied, the second WPG becomes the current one, the old one is
stopped, and the operations go on (`done`).

A rollout deployment moves to idle devices the same way. It has no window to wait for, so it is held
as soon as the new instances are up, until what runs has ended. Nothing is copied: `Initialize`
makes the rollout manager bring the new instances to the version in use. One that generates where
its job trains follows that (`movers`). Its new instances start when they have their
devices, so it is held at once.

Before the second WPG becomes the current one, the job sees no change. Whatever fails earlier (a
spawn, the copy, a new rank, its node) ends the relocation with a reason (`failed`), and the current
WPG goes on. If the current WPG dies, the deployment fails as always. `settle` looks at every
relocation after each event, so no other part needs to know of them.
"""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import MoveId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import (
    CarryState,
    CutOver,
    DropCarried,
    RelocationChanged,
)
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.events import CarryFailed, StateCarried
from plexsvc.scheduler.core.life import deployments, wpgs
from plexsvc.scheduler.core.place import hosts, placing
from plexsvc.scheduler.core.state import HELD, DeploymentEntry, Relocation, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    Place,
    RelocationStage,
    WpgState,
)


def begin(
    lives: Lives, deployment: DeploymentEntry, places: tuple[Place, ...], *, reason: str
) -> Fault | None:
    """Start to move a deployment to `places`, rank i to `places[i]`; return why not, if so."""
    fault = why_not(lives, deployment, places)
    if fault is not None:
        return fault
    deployment.incarnations += 1
    if deployment.is_rollout and not deployment.where_it_trains:
        placing.hold(lives.placement, deployment, tuple(place.unit for place in places))
    wpg = wpgs.add(lives, deployment, places)
    deployment.relocation = Relocation(
        wpg_id=wpg.wpg_id,
        initialize_id=deployment.initialize_id_of(wpg.incarnation),
        places=places,
        reason=reason,
        started_us=lives.now_us,
    )
    if deployment.where_it_trains:
        deployment.relocation.stage = RelocationStage.WAITING
    deployment.relocation_fault = None
    lives.roll.relocating[deployment.deployment_id] = None
    _tell(lives, deployment, deployment.relocation)
    if not deployment.where_it_trains:
        switch.spawn(lives, wpg, replaces=deployment.wpg_id)
    at_us = lives.now_us + lives.limits.relocation_timeout_us
    lives.set_timer(Timer.RELOCATE, wpg.wpg_id, at_us=at_us)
    return None


def why_not(
    devices: Devices, deployment: DeploymentEntry, places: tuple[Place, ...]
) -> Fault | None:
    """Return why a deployment cannot begin to move to `places`; `None` if it can."""
    name, wpg = deployment.deployment_id, devices.wpg_of(deployment)
    if deployment.relocation is not None:
        return _refused(f"{name} is being moved already", code=ErrorCode.UNAVAILABLE)
    is_ending = devices.jobs[deployment.job_id].ending is not None
    if is_ending or deployment.state is not DeploymentState.READY or wpg is None:
        state = "ending" if is_ending else deployment.state
        return _refused(f"{name} is {state}, not ready", code=ErrorCode.UNAVAILABLE)
    if deployment.lost is not None:
        return _refused(f"{name} is being rebuilt", code=ErrorCode.UNAVAILABLE)
    usable = [p for p in places if _is_usable(devices, deployment, p)]
    if len(set(usable)) != len(places) or len(places) != deployment.num_devices:
        told = ", ".join(p.unit for p in places) or "none"
        idle = "idle " if deployment.is_rollout else ""
        kind = f"{idle}{deployment.device_kind}"
        needed = f"{deployment.num_devices} {kind} devices of nodes that are up"
        return _refused(f"{name} needs {needed}; asked for {told}")
    if places == wpg.places:
        return _refused(f"{name} is there already")
    return None


def _is_usable(devices: Devices, deployment: DeploymentEntry, place: Place) -> bool:
    device = devices.at.get(place)
    is_up = place.node_id in devices.placement.nodes
    if device is None or not is_up or device.kind != deployment.device_kind:
        return False
    if deployment.is_rollout:
        return deployment.where_it_trains or not device.ranks
    board = devices.placement.planner(deployment.device_kind).board
    return bool(board.not_held([place.unit]))


def settle(lives: Lives) -> None:
    """Bring every relocation as far as it can go now."""
    for deployment_id in list(lives.relocating):
        deployment = lives.deployments[deployment_id]
        assert deployment.relocation is not None, deployment
        _settle(lives, deployment, deployment.relocation)


def carried(lives: Lives, event: StateCarried | CarryFailed) -> None:
    """Go on with a copy that was made, or end without; one that came too late is freed."""
    deployment = lives.deployments.get(event.deployment_id)
    relocation = None if deployment is None else deployment.relocation
    if deployment is None or relocation is None or relocation.move_id != event.move_id:
        hosts.carried(lives.placement, event.move_id)
        if isinstance(event, StateCarried):
            lives.emit(DropCarried(move_id=event.move_id))
    elif isinstance(event, CarryFailed):
        abandon(lives, deployment, event.fault)
        hosts.carried(lives.placement, event.move_id)
    else:
        relocation.stage = RelocationStage.RESTORING
        _tell(lives, deployment, relocation)
        coming = lives.wpgs[relocation.wpg_id]
        wpgs.queue_initialize(lives, coming, relocation.initialize_id)


def abandon(lives: Lives, deployment: DeploymentEntry, fault: Fault) -> None:
    """End a relocation without effect: the deployment stays where it is and goes on."""
    relocation = deployment.relocation
    assert relocation is not None, deployment
    old = lives.wpg_of(deployment)
    if relocation.stage is RelocationStage.CARRYING and relocation.move_id and old is not None:
        hosts.carry(lives.placement, old, relocation.move_id)
    _close(lives, deployment, relocation)
    deployment.relocation_fault = fault
    _tell(lives, deployment, relocation, stage=RelocationStage.FAILED, fault=fault)
    deployments.fail_wpg(lives, lives.wpgs[relocation.wpg_id], fault)
    lives.touch(deployment.wpg_id)


def give_up_waiting(lives: Lives, wpg_id: WpgId) -> None:
    """End a relocation that found no step boundary in time."""
    wpg = lives.wpgs[wpg_id]
    deployment = lives.deployments[wpg.deployment_id]
    relocation = deployment.relocation
    if relocation is None or relocation.wpg_id != wpg.wpg_id or relocation.stage in HELD:
        return
    if relocation.stage is RelocationStage.SPAWNING:
        what = "its new processes did not come up"
    elif deployment.is_rollout:
        what = "what ran did not end"
    else:
        what = (
            "no step boundary came (accumulated gradients cannot move: step or zero_grad, then "
            "move it again)"
        )
    limit_s = lives.limits.relocation_timeout_us // 1_000_000
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{deployment.deployment_id} stays where it is: {what} within {limit_s} s",
    )
    abandon(lives, deployment, fault)


def tell_failed(
    devices: Devices, deployment: DeploymentEntry, *, reason: str, fault: Fault
) -> None:
    """Tell why a relocation did not begin."""
    devices.emit(
        RelocationChanged(
            deployment_id=deployment.deployment_id,
            stage=RelocationStage.FAILED,
            places=(),
            reason=reason,
            fault=fault,
        )
    )


def _settle(lives: Lives, deployment: DeploymentEntry, relocation: Relocation) -> None:
    ended = _why_over(lives, deployment, relocation)
    if ended is not None:
        abandon(lives, deployment, ended)
        return
    old, new = lives.wpg_of(deployment), lives.wpgs[relocation.wpg_id]
    assert old is not None, deployment
    if relocation.stage is RelocationStage.SPAWNING and new.state is WpgState.READY:
        relocation.stage = RelocationStage.WAITING
        _tell(lives, deployment, relocation)
    is_still = not old.running and old.move_id is None and old.switch is None
    is_quiet = is_still and not old.writing and not deployment.is_window_open
    if relocation.stage is RelocationStage.WAITING and is_quiet:
        relocation.move_id = lives.new_move_id()
        relocation.stage = RelocationStage.CARRYING
        _tell(lives, deployment, relocation)
        lives.emit(carry_order(deployment, relocation, old=old, move_id=relocation.move_id))
    elif relocation.stage is RelocationStage.RESTORING and new.residency is Residency.DEVICE:
        _cut_over(lives, deployment, relocation, old=old, new=new)


def _why_over(
    devices: Devices, deployment: DeploymentEntry, relocation: Relocation
) -> Fault | None:
    """Return what ended a relocation before its time, if anything did."""
    name = deployment.deployment_id
    if devices.jobs[deployment.job_id].ending is not None:
        return Fault(code=ErrorCode.JOB_ENDED, message=f"{name} is not moved: its job ends")
    if deployment.state is not DeploymentState.READY:
        why = f": {deployment.fault.message}" if deployment.fault is not None else ""
        message = f"{name} is not moved: it is {deployment.state}{why}"
        return Fault(code=ErrorCode.DEPLOYMENT_FAILED, message=message)
    cause = relocation.fault or deployment.lost
    if cause is None:
        return None
    message = f"{name} stays where it is and goes on: {cause.code}: {cause.message}"
    return Fault(code=cause.code, message=message, facts=cause.facts)


def carry_order(
    deployment: DeploymentEntry, relocation: Relocation, *, old: Wpg, move_id: MoveId
) -> CarryState:
    """Return the order for the copy that a relocation's new WPG starts from."""
    return CarryState(
        deployment_id=deployment.deployment_id,
        from_wpg_id=old.wpg_id,
        to_wpg_id=relocation.wpg_id,
        initialize_id=relocation.initialize_id,
        move_id=move_id,
        lease_no=old.lease_no,
    )


def _cut_over(
    lives: Lives, deployment: DeploymentEntry, relocation: Relocation, *, old: Wpg, new: Wpg
) -> None:
    """Let the new WPG take the old one's place, and the old one end."""
    deployment.wpg_id = new.wpg_id
    lives.emit(
        CutOver(
            deployment_id=deployment.deployment_id,
            from_wpg_id=old.wpg_id,
            to_wpg_id=new.wpg_id,
        )
    )
    _close(lives, deployment, relocation)
    _tell(lives, deployment, relocation, stage=RelocationStage.DONE)
    deployments.announce(lives, deployment)
    for other in lives.jobs[deployment.job_id].deployments:
        if lives.deployments[other].where_it_trains:
            lives.roll.following[other] = None
    wpgs.stop_when_idle(lives, old)
    lives.touch(new.wpg_id)


def _close(lives: Lives, deployment: DeploymentEntry, relocation: Relocation) -> None:
    """Forget a relocation; its copy, if it was made, is not needed any more."""
    deployment.relocation = None
    del lives.roll.relocating[deployment.deployment_id]
    if relocation.stage is RelocationStage.RESTORING and relocation.move_id is not None:
        lives.emit(DropCarried(move_id=relocation.move_id))


def _tell(
    devices: Devices,
    deployment: DeploymentEntry,
    relocation: Relocation,
    *,
    stage: RelocationStage | None = None,
    fault: Fault | None = None,
) -> None:
    devices.emit(
        RelocationChanged(
            deployment_id=deployment.deployment_id,
            stage=stage or relocation.stage,
            places=relocation.places,
            reason=relocation.reason,
            fault=fault,
        )
    )


def _refused(message: str, *, code: ErrorCode = ErrorCode.BAD_REQUEST) -> Fault:
    return Fault(code=code, message=f"not moved: {message}")

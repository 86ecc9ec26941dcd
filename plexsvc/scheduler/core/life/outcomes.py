"""Outcomes of orders: what follows when processes came up, ended, moved state or finished work.

Each public function handles one event. Events about a WPG or an operation that is gone change
nothing: an outcome may arrive after the order it reports stopped mattering.
"""

from __future__ import annotations

from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import WpgId
from plexsvc.residency import ResidencyTrigger
from plexsvc.scheduler.core import events
from plexsvc.scheduler.core.accounts import Usage
from plexsvc.scheduler.core.actions import ForgetWpg
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.device import lease, space, switch
from plexsvc.scheduler.core.life import deployments, instances, jobs, rebuilding, wpgs
from plexsvc.scheduler.core.place import hosts, placing
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import Device, Operation, Wpg
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    OperationKind,
    OperationState,
    WpgState,
    WpgTrigger,
)

FATAL: Final = frozenset({ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST})
"""Faults of an operation after which the ranks that ran it cannot be trusted. Rollout instances
are judged one by one."""


def came_up(devices: Devices, event: events.WpgReady) -> None:
    """Queue `Initialize` of a WPG whose ranks answer, unless it can never fit.

    One that is coming waits with it for the state it starts from.
    """
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or wpg.state is not WpgState.SPAWNING:
        return
    wpg.device_bytes, wpg.parked_bytes = event.device_bytes, event.parked_bytes
    wpg.pass_bytes = event.pass_bytes
    wpg.models, wpg.model_bytes = event.models, event.model_bytes
    for device in wpg.devices:
        if space.bytes_alone(wpg, device) > device.bytes_total:
            deployments.fail_wpg(devices, wpg, _no_room(wpg, device))
            return
    wpg.apply(WpgTrigger.CAME_UP)
    hosts.keep(devices.placement, wpg)
    if wpg.switch is not None:
        switch.advance(devices, wpg)
    elif devices.is_current(wpg):
        deployment = devices.deployments[wpg.deployment_id]
        placing.resize(devices.placement, deployment, wpg.device_bytes)
        initialize_id = deployment.initialize_id_of(wpg.incarnation)
        wpgs.queue_initialize(devices, wpg, initialize_id)


def did_not_spawn(devices: Devices, event: events.SpawnFailed) -> None:
    """Fail a WPG whose processes could not be started."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is not None:
        deployments.fail_wpg(devices, wpg, _why_not_up(devices, wpg, event.fault))


def did_not_come_up(devices: Devices, wpg_id: WpgId) -> None:
    """Fail a WPG whose processes did not answer in time."""
    wpg = devices.wpgs[wpg_id]
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{wpg.wpg_id} did not come up within "
        f"{devices.limits.spawn_timeout_us // 1_000_000} s (scheduler.spawn_timeout_us); see "
        "the ranks' logs",
        facts=(("worker", wpg.wpg_id),),
    )
    deployments.fail_wpg(devices, wpg, fault)


def died(devices: Devices, event: events.ProcExited) -> None:
    """Fail a WPG of which a rank ended that was not told to, or have an instance spawned again."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or event.incarnation != wpg.incarnation_of(event.rank):
        return
    if wpg.state in {WpgState.STOPPING, WpgState.FORGETTING}:
        return
    how = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
    last = event.log_tail.strip().rsplit("\n", 1)[-1]
    fault = Fault(
        code=ErrorCode.WORKER_DIED,
        message=f"rank {event.rank} of {event.wpg_id} died with {how}"
        + (f"; its log ends: {last}" if last else "")
        + ("" if instances.may_respawn(devices, wpg) else "; deploy again to go on"),
        facts=(
            ("worker", f"{event.wpg_id}/{event.rank}"),
            ("exit_code", str(event.exit_code)),
            ("signal", str(event.signal)),
            ("log_tail", event.log_tail),
        ),
    )
    if wpg.state is WpgState.SPAWNING:
        fault = _why_not_up(devices, wpg, fault)
    instances.lose(devices, wpg, event.rank, fault)


def _why_not_up(devices: Devices, wpg: Wpg, fault: Fault) -> Fault:
    """Return why a deployment could not start, in the words in which its process ended."""
    is_first = devices.deployments[wpg.deployment_id].lost is None
    if fault.code is not ErrorCode.WORKER_DIED or not devices.is_current(wpg) or not is_first:
        return fault
    if rebuilding.may_begin(devices, wpg, fault):
        return fault
    last = dict(fault.facts).get("log_tail", "").strip().rsplit("\n", 1)[-1]
    return Fault(
        code=ErrorCode.DEPLOYMENT_FAILED,
        message=f"{wpg.deployment_id} did not come up: {last or fault.message}",
        facts=fault.facts,
    )


def stopped(devices: Devices, event: events.WpgStopped) -> None:
    """Let others have the devices of a stopped WPG, and order its state to be freed."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is not None and wpg.state is WpgState.STOPPING:
        wpg.apply(WpgTrigger.STOPPED)
        lease.release(devices, wpg)
        devices.emit(ForgetWpg(wpg_id=wpg.wpg_id, lease_no=wpg.lease_no))


def forgotten(lives: Lives, event: events.WpgForgotten) -> None:
    """Take a WPG of which nothing is left off its devices and let others use the room."""
    wpg = lives.wpgs.get(event.wpg_id)
    if wpg is None or wpg.state is not WpgState.FORGETTING:
        return
    del lives.roll.wpgs[wpg.wpg_id]
    neighbours = space.leave(lives, wpg)
    if rebuilding.may_go_on(lives, wpg):
        rebuilding.go_on(lives, wpg)
    elif lives.is_current(wpg):
        deployments.end(lives, lives.deployments[wpg.deployment_id], wpg)
    else:
        placing.free(lives.placement, wpg)
    for other_id in neighbours:
        other = lives.wpgs.get(other_id)
        if other is not None:
            lives.touch(other_id)
            switch.advance(lives, other)
    jobs.drop_ended(lives, lives.jobs[wpg.job_id])


def moved(devices: Devices, event: events.ResidencyMoved) -> None:
    """Go on with the switch that a move was for."""
    wpg = switch.moved(devices, event)
    if wpg is not None:
        instances.wake(devices, wpg)
        wpgs.stop_when_idle(devices, wpg)


def did_not_move(devices: Devices, event: events.MoveFailed) -> None:
    """Put off the switch that a move was for, or fail a WPG that cannot be trusted any more."""
    wpg = devices.wpgs.get(event.wpg_id)
    for failed in switch.move_failed(devices, event):
        deployments.fail_wpg(devices, failed, event.fault)
    if wpg is not None:
        wpgs.stop_when_idle(devices, wpg)


def copied(devices: Devices, event: events.StateCopied) -> None:
    """Let a WPG go on while a copy of its state is written or hashed."""
    operation = devices.queues.operations.get(event.operation_id)
    if operation is None or operation.state is not OperationState.RUNNING:
        return
    assert operation.wpg_id is not None, operation
    wpg = devices.wpgs[operation.wpg_id]
    lease.unpin(devices, wpg, operation)
    if wpg.running.pop(event.operation_id, None) is not None:
        wpg.writing[event.operation_id] = operation
        devices.touch(wpg.wpg_id)


def finished(devices: Devices, event: events.OperationFinished) -> None:
    """Answer an operation that its executors have ended, and free what it held."""
    operation = devices.queues.operations.get(event.operation_id)
    if operation is None or operation.state is not OperationState.RUNNING:
        return
    assert operation.wpg_id is not None, operation
    if event.wpg_id is not None and event.wpg_id != operation.wpg_id:
        return  # it runs again elsewhere
    wpg = devices.wpgs[operation.wpg_id]
    is_written = wpg.writing.pop(operation.operation_id, None) is not None
    is_fatal = event.fault is not None and event.fault.code in FATAL
    if event.fault is not None and is_fatal and not (is_written or wpg.is_rollout):
        deployments.fail_wpg(devices, wpg, event.fault)
        return
    lease.unpin(devices, wpg, operation)
    hosts.copied(devices.placement, wpg, operation)
    wpg.running.pop(operation.operation_id, None)
    lease.ended(devices, wpg, operation, run_us=event.run_us)
    if event.fault is None:
        used = Usage(count=1, tokens=event.num_tokens, nbytes=event.nbytes)
        lease.charge(devices, wpg, operation.kind, used, operation=operation)
    if operation.kind is OperationKind.INITIALIZE:
        _initialized(devices, wpg, operation, event)
    elif event.fault is None:
        endings.answer(devices.queues, operation, run_us=event.run_us)
        rebuilding.applied(devices, wpg, operation)
        if operation.kind is OperationKind.PUBLISH:
            devices.jobs[wpg.job_id].cycle += 1  # with what is published another begins
    elif is_written and is_fatal and wpg.is_lost:  # its copy went with a node
        again = rebuilding.send_again(wpg, event.fault)
        endings.end_running(devices.queues, operation, again, is_refusal=True)
    else:
        endings.end_running(devices.queues, operation, event.fault, is_refusal=event.is_refusal)
    if event.fault is not None:  # its number may be free again
        lanes.watch_gap(devices.queues, devices.deployments[operation.deployment_id])
    devices.touch(wpg.wpg_id)
    wpgs.stop_when_idle(devices, wpg)


def _initialized(
    devices: Devices, wpg: Wpg, operation: Operation, event: events.OperationFinished
) -> None:
    if event.fault is not None:  # what it allocated stays on the device until it is forgotten
        endings.end_running(devices.queues, operation, event.fault)
        deployments.fail_wpg(devices, wpg, event.fault)
        return
    wpg.shift(ResidencyTrigger.BUILT)
    endings.answer(devices.queues, operation, run_us=event.run_us)
    if devices.is_current(wpg):
        deployment = devices.deployments[wpg.deployment_id]
        deployment.state = DeploymentState.READY
        rebuilding.rebuilt(devices, deployment)
        deployments.announce(devices, deployment)


def _no_room(wpg: Wpg, device: Device) -> Fault:
    need, total = space.bytes_alone(wpg, device), device.bytes_total
    place, passes, advice = device.place, "", ""
    if pass_bytes := space.pass_of(wpg, device):
        passes = f", {pass_bytes} of them for passes"
        fits = max(0, pass_bytes - need + total) * 100 // pass_bytes
        advice = f"{fits} % of its micro_batch_tokens, recompute, " if fits else ""
    return Fault(
        code=ErrorCode.NO_PLACEMENT,  # final: no wait makes a device larger
        message=f"{wpg.deployment_id} needs {need} bytes on device {place.device} of "
        f"{place.node_id}{passes}, which has {total}; use {advice}a larger parallel layout or a "
        "smaller model",
        facts=(("need", str(need)), ("total", str(total)), ("node", place.node_id)),
    )

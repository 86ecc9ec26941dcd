"""Jobs, deployments, processes: placed, brought up, failed, torn down; teardown always frees."""

from __future__ import annotations

from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, WpgId, show
from plexsvc.scheduler.core.actions import (
    CancelOperation,
    DeploymentChanged,
    ForgetWpg,
    JobChanged,
    SpawnWpg,
    StopWpg,
)
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import learning, lease, space, switch
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    JobEndRequested,
    JobSubmitted,
    NodeJoined,
)
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import Deployment, Device, Job, Node, Operation, Wpg
from plexsvc.scheduler.core.timers import PlaceTimer, SpawnTimer
from plexsvc.scheduler.core.transitions import (
    JOB_TRANSITIONS,
    JobTrigger,
    OperationTrigger,
    WpgTrigger,
    step,
)
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    JobState,
    OperationKind,
    Place,
    WpgState,
)

MAX_ENDED_JOBS: Final = 4096
"""Ended jobs the core remembers, to answer `job_ended` rather than `not_found`."""

END_TRIGGERS: Final = {
    JobState.COMPLETED: JobTrigger.COMPLETED,
    JobState.FAILED: JobTrigger.FAILED,
    JobState.CANCELLED: JobTrigger.CANCELLED,
}


def open_job(cluster: Cluster, event: JobSubmitted) -> None:
    """Record a new job; a known one stays as it is."""
    if event.job_id not in cluster.jobs:
        cluster.roll.jobs[event.job_id] = Job(
            job_id=event.job_id,
            tenant=event.tenant,
            name=event.name,
            priority=event.priority,
            max_slowdown_ppm=event.max_slowdown_ppm,
        )


def join_node(cluster: Cluster, event: NodeJoined) -> None:
    """Take a node's devices into the cluster; a returning node brings its places back."""
    places = []
    for facts in sorted(event.devices, key=lambda d: d.index):
        place = Place(node_id=event.node_id, device=facts.index)
        places.append(place)
        if place not in cluster.devices.at:
            cluster.devices.at[place] = Device(
                place=place, kind=facts.kind, bytes_total=facts.bytes_total, since_us=event.at_us
            )
    cluster.placement.nodes[event.node_id] = Node(
        node_id=event.node_id, host_bytes=event.host_bytes, devices=places
    )
    host_bytes = event.host_bytes
    placing.join(cluster.placement, event.node_id, devices=event.devices, host_bytes=host_bytes)


def lose_node(cluster: Cluster, node_id: NodeId, *, reason: str) -> None:
    """Fail every WPG with a rank on a lost node; its devices come back when it rejoins."""
    cluster.placement.nodes.pop(node_id, None)
    placing.close(cluster.placement, node_id)
    fault = Fault(
        code=ErrorCode.NODE_LOST,
        message=f"node {node_id} is lost: {reason}; its processes are dead, deploy again elsewhere",
        facts=(("node", node_id),),
    )
    for wpg in list(cluster.wpgs.values()):
        if any(place.node_id == node_id for place in wpg.places):
            fail_wpg(cluster, wpg, fault)


def request_deployment(cluster: Cluster, event: DeploymentRequested) -> None:
    """Record a new deployment of a live job and place it, now or when devices free up.

    Repeating changes nothing.
    """
    job = cluster.jobs.get(event.job_id)
    if job is None or job.ending is not None or event.deployment_id in cluster.deployments:
        return
    deployment = Deployment(
        deployment_id=event.deployment_id,
        job_id=event.job_id,
        initialize_id=event.initialize_id,
        role=event.role,
        backend=event.backend,
        device_kind=event.device_kind,
        num_devices=event.num_devices,
        is_rollout=event.is_rollout,
        name=event.name,
        model=event.model,
        layout=event.layout,
        requested_us=event.at_us,
    )
    cluster.roll.deployments[event.deployment_id] = deployment
    cluster.jobs[event.job_id].deployments.append(event.deployment_id)
    if not placing.can_ever_hold(cluster.placement, deployment):
        fail_deployment(cluster, deployment, placing.no_placement(cluster.placement, deployment))
        return
    placing.request(cluster.placement, deployment)
    place_waiting(cluster)
    if event.deployment_id in cluster.placement.unplaced:
        at_us = event.at_us + cluster.limits.placement_timeout_us
        cluster.set_timer(PlaceTimer(event.deployment_id), at_us=at_us)


def place_waiting(cluster: Cluster) -> None:
    """Place what can be placed now and start its processes."""
    for deployment, places in placing.admit(cluster.placement):
        wpg = add_wpg(cluster, deployment, places)
        deployment.wpg_id = wpg.wpg_id
        job = cluster.jobs[deployment.job_id]
        was, job.state = job.state, step(JOB_TRANSITIONS, job.state, JobTrigger.PLACED)
        if was is not job.state:
            cluster.emit(JobChanged(job_id=job.job_id, state=job.state, reason=""))
        announce(cluster, deployment)
        spawn(cluster, wpg)
        learning.start_probe(cluster.devices, deployment)


def give_up_placing(cluster: Cluster, deployment_id: DeploymentId) -> None:
    """Fail a deployment for which no devices came free in time."""
    if deployment_id in cluster.placement.unplaced:
        deployment = cluster.deployments[deployment_id]
        placing.withdraw(cluster.placement, deployment)
        fail_deployment(cluster, deployment, placing.no_placement(cluster.placement, deployment))


def come_up(cluster: Cluster, wpg: Wpg, *, device_bytes: tuple[int, ...]) -> None:
    """Queue `Initialize` of a WPG whose ranks answer, unless it can never fit.

    One that is coming waits with it for the state it starts from.
    """
    if wpg.state is not WpgState.SPAWNING:
        return
    deployment = cluster.deployments[wpg.deployment_id]
    wpg.device_bytes = device_bytes
    for place, nbytes in zip(wpg.places, device_bytes, strict=True):
        total = cluster.devices.at[place].bytes_total
        if nbytes > total:
            fail_wpg(cluster, wpg, _no_room(deployment, place, need=nbytes, total=total))
            return
    wpg.apply(WpgTrigger.CAME_UP)
    if cluster.is_current(wpg):
        placing.resize(cluster.placement, deployment, device_bytes)
        queue_initialize(cluster, wpg, deployment.initialize_id)


def queue_initialize(cluster: Cluster, wpg: Wpg, operation_id: OperationId) -> None:
    """Let a WPG's first operation wait for its devices."""
    initialize = Operation(
        operation_id=operation_id,
        deployment_id=wpg.deployment_id,
        job_id=wpg.job_id,
        seq=0,
        kind=OperationKind.INITIALIZE,
        after=(),
        submitted_us=cluster.now_us,
        eligible_us=cluster.now_us,
        wpg_id=wpg.wpg_id,
    )
    initialize.apply(OperationTrigger.ACCEPTED)
    initialize.apply(OperationTrigger.PAYLOAD_ARRIVED)
    cluster.queues.operations[operation_id] = wpg.initialize = initialize
    cluster.touch(wpg.wpg_id)


def set_ready(cluster: Cluster, deployment: Deployment) -> None:
    """Announce a deployment whose `Initialize` is applied."""
    deployment.state = DeploymentState.READY
    announce(cluster, deployment)


def fail_deployment(cluster: Cluster, deployment: Deployment, fault: Fault) -> None:
    """Fail a deployment and everything it runs or has waiting; later operations are refused."""
    if deployment.state in {DeploymentState.FAILED, DeploymentState.STOPPED}:
        return
    deployment.state, deployment.fault = DeploymentState.FAILED, fault
    wpg = cluster.wpg_of(deployment)
    if wpg is not None:
        _end_running(cluster, wpg, fault)
    refuse_pending(cluster, deployment, fault)
    announce(cluster, deployment)


def _end_running(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """End what a WPG runs: its processes are gone."""
    for operation in list(wpg.running.values()):
        del wpg.running[operation.operation_id]
        lanes.end_running(cluster.queues, operation, fault)


def _refuse_granted(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """Take a WPG's grant back and refuse its `Initialize` if that still waits."""
    if wpg.switch is not None:
        switch.withdraw(cluster.devices, wpg)
    if wpg.initialize is not None:
        lanes.refuse(cluster.queues, wpg.initialize, fault)


def refuse_pending(cluster: Cluster, deployment: Deployment, fault: Fault) -> None:
    """Refuse all that waits in a deployment, its granted operation included."""
    wpg = cluster.wpg_of(deployment)
    if wpg is not None:
        _refuse_granted(cluster, wpg, fault)
    for seq in sorted(deployment.pending):
        lanes.refuse(cluster.queues, deployment.pending[seq], fault)
    deployment.gap_seq = None


def fail_wpg(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """Stop all ranks of a WPG and fail its deployment, or the relocation it was started for."""
    deployment = cluster.deployments[wpg.deployment_id]
    if cluster.is_current(wpg):
        fail_deployment(cluster, deployment, fault)
    else:
        if deployment.relocation is not None and not cluster.is_leaving(wpg):
            deployment.relocation.fault = fault
        _end_running(cluster, wpg, fault)
        _refuse_granted(cluster, wpg, fault)
    stop_wpg(cluster, wpg)


def give_up_spawning(cluster: Cluster, wpg_id: WpgId) -> None:
    """Fail a WPG whose processes did not come up in time."""
    wpg = cluster.wpgs.get(wpg_id)
    if wpg is None or wpg.state is not WpgState.SPAWNING:
        return
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{wpg.wpg_id} did not come up within "
        f"{cluster.limits.spawn_timeout_us // 1_000_000} s (scheduler.spawn_timeout_us); see "
        "the ranks' logs",
        facts=(("worker", wpg.wpg_id),),
    )
    fail_wpg(cluster, wpg, fault)


def find_stuck(cluster: Cluster, wpg_id: WpgId) -> None:
    """Fail a WPG whose oldest running operation is stuck; else watch on."""
    wpg = cluster.wpgs.get(wpg_id)
    if wpg is None or wpg.state is not WpgState.READY:
        return
    wpg.watch_us = None
    if not wpg.running:
        return
    oldest = min(wpg.running.values(), key=lambda operation: operation.started_us)
    if cluster.now_us - oldest.started_us < cluster.limits.operation_timeout_us:
        lease.watch(cluster.devices, wpg, since_us=oldest.started_us)
        return
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{show(oldest.operation_id)} ({oldest.kind}) ran for more than "
        f"{cluster.limits.operation_timeout_us // 1_000_000} s (scheduler.operation_timeout_us); "
        f"{wpg.wpg_id} was stopped",
        facts=(("operation", oldest.operation_id.hex()), ("worker", wpg.wpg_id)),
    )
    fail_wpg(cluster, wpg, fault)


def stop_wpg(cluster: Cluster, wpg: Wpg) -> None:
    """Order a WPG's processes to end; its lease is free at once, its memory once forgotten."""
    if wpg.state in {WpgState.SPAWNING, WpgState.READY}:
        lease.release(cluster.devices, wpg)
        wpg.apply(WpgTrigger.STOP_ORDERED)
        cluster.emit(StopWpg(wpg_id=wpg.wpg_id))


def forget_wpg(cluster: Cluster, wpg: Wpg) -> None:
    """Order a stopped WPG's state to be freed."""
    wpg.apply(WpgTrigger.STOPPED)
    cluster.emit(ForgetWpg(wpg_id=wpg.wpg_id, lease_no=wpg.lease_no))


def remove_wpg(cluster: Cluster, wpg: Wpg) -> None:
    """Take a forgotten WPG off its devices and let others use the room."""
    del cluster.roll.wpgs[wpg.wpg_id]
    neighbours = space.leave(cluster.devices, wpg)
    if cluster.is_current(wpg):
        _stopped(cluster, wpg)
    else:
        placing.free(cluster.placement, wpg)
    for other_id in neighbours:
        other = cluster.wpgs.get(other_id)
        if other is not None:
            cluster.touch(other_id)
            switch.advance(cluster.devices, other)
    finish_job(cluster, cluster.jobs[wpg.job_id])


def _stopped(cluster: Cluster, wpg: Wpg) -> None:
    """Note that a deployment has no processes any more."""
    deployment = cluster.deployments[wpg.deployment_id]
    learning.keep(cluster.devices, deployment)
    placing.free(cluster.placement, wpg)
    deployment.wpg_id = None
    if deployment.state is not DeploymentState.FAILED:
        deployment.state = DeploymentState.STOPPED
        announce(cluster, deployment)


def end_job(cluster: Cluster, event: JobEndRequested) -> None:
    """Refuse what a job has waiting, let what runs end, then stop its processes."""
    job = cluster.jobs.get(event.job_id)
    if job is None or job.ending is not None:
        return
    job.ending, job.reason = event.outcome, event.reason
    is_cancelled = event.outcome is JobState.CANCELLED
    fault = Fault(
        code=ErrorCode.CANCELLED if is_cancelled else ErrorCode.JOB_ENDED,
        message=f"job {job.job_id} ended as {event.outcome}: {event.reason or 'no reason given'}",
        facts=(("job", job.job_id),),
    )
    for deployment_id in job.deployments:
        deployment = cluster.deployments[deployment_id]
        if deployment_id in cluster.placement.unplaced:
            placing.withdraw(cluster.placement, deployment)
            fail_deployment(cluster, deployment, fault)
        refuse_pending(cluster, deployment, fault)
        wpg = cluster.wpg_of(deployment)
        if wpg is not None:
            _cancel_generates(cluster, wpg)
            stop_when_idle(cluster, wpg)
    for wpg in cluster.coming(job.job_id):
        _refuse_granted(cluster, wpg, fault)
        stop_when_idle(cluster, wpg)
    finish_job(cluster, job)


def stop_when_idle(cluster: Cluster, wpg: Wpg) -> None:
    """Stop a WPG of an ending job, or one that was replaced, once nothing of it runs or moves."""
    is_ending = cluster.jobs[wpg.job_id].ending is not None or cluster.is_leaving(wpg)
    is_idle = wpg.move_id is None and not wpg.running
    if is_ending and is_idle:
        stop_wpg(cluster, wpg)


def finish_job(cluster: Cluster, job: Job) -> None:
    """Drop an ending job once none of its processes is left."""
    if job.ending is None or any(w.job_id == job.job_id for w in cluster.wpgs.values()):
        return
    job.state = step(JOB_TRANSITIONS, job.state, END_TRIGGERS[job.ending])
    for deployment_id in job.deployments:
        deployment = cluster.roll.deployments.pop(deployment_id)
        for operation_id in deployment.answered.values():
            del cluster.queues.operations[operation_id]
        cluster.queues.operations.pop(deployment.initialize_id, None)
    del cluster.roll.jobs[job.job_id]
    _remember_ended(cluster, job.job_id, job.state)
    cluster.emit(
        JobChanged(job_id=job.job_id, state=job.state, reason=job.reason, device_us=job.device_us)
    )


def _remember_ended(cluster: Cluster, job_id: JobId, state: JobState) -> None:
    cluster.roll.ended[job_id] = state
    if len(cluster.roll.ended) > MAX_ENDED_JOBS:
        forgotten, _ = cluster.roll.ended.popitem(last=False)
        lease.forget_waits(cluster.devices, forgotten)


def _cancel_generates(cluster: Cluster, wpg: Wpg) -> None:
    for operation in wpg.running.values():
        if operation.kind is OperationKind.GENERATE:
            cluster.emit(CancelOperation(operation_id=operation.operation_id, wpg_id=wpg.wpg_id))


def add_wpg(cluster: Cluster, deployment: Deployment, places: tuple[Place, ...]) -> Wpg:
    """Return a new WPG of a deployment, on its devices, of which no process runs yet."""
    cluster.roll.last_wpg_no += 1
    wpg = Wpg(
        wpg_id=WpgId(f"wpg-{cluster.turn.epoch}-{cluster.roll.last_wpg_no}"),
        deployment_id=deployment.deployment_id,
        job_id=deployment.job_id,
        incarnation=deployment.incarnations,
        places=places,
        is_rollout=deployment.is_rollout,
    )
    cluster.roll.wpgs[wpg.wpg_id] = wpg
    space.enter(cluster.devices, wpg)
    return wpg


def spawn(cluster: Cluster, wpg: Wpg, *, replaces: WpgId | None = None) -> None:
    """Order a WPG's processes."""
    cluster.emit(
        SpawnWpg(
            wpg_id=wpg.wpg_id,
            deployment_id=wpg.deployment_id,
            incarnation=wpg.incarnation,
            places=wpg.places,
            replaces=replaces,
        )
    )
    at_us = cluster.now_us + cluster.limits.spawn_timeout_us
    cluster.set_timer(SpawnTimer(wpg.wpg_id), at_us=at_us)


def announce(cluster: Cluster, deployment: Deployment) -> None:
    """Tell a deployment's state."""
    cluster.emit(
        DeploymentChanged(
            deployment_id=deployment.deployment_id,
            state=deployment.state,
            wpg_id=deployment.wpg_id,
            fault=deployment.fault,
        )
    )


def _no_room(deployment: Deployment, place: Place, *, need: int, total: int) -> Fault:
    return Fault(
        code=ErrorCode.NO_ROOM,
        message=f"{deployment.deployment_id} needs {need} bytes on device {place.device} of "
        f"{place.node_id}, which has {total}; use a larger parallel layout or a smaller model",
        facts=(("need", str(need)), ("total", str(total)), ("node", place.node_id)),
    )

"""How long picking the next of 10,000 pending operations takes, what 64,000 cost: one JSON line.

The service's own pick on a core that holds them: the heads of one group's deployments contend.
`submit`: what the core takes for each of 64 operations that each of 1,000 jobs submits while their
devices are held; `bytes_an_operation`: the memory that the core holds for each.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, TenantId
from plexsvc.scheduler.core.actions import Action, MoveState, SpawnWpg, StartOperation
from plexsvc.scheduler.core.device import contest
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    OperationFinished,
    OperationSubmitted,
    ResidencyMoved,
    WpgReady,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.vocabulary import DeviceFacts, OperationKind

PENDING = 10_000
ROUNDS = 5_000
DEVICES = 32
JOBS = 5 * DEVICES
A_JOB = 64
"""Pending operations of a job: the limit of a deployment."""


def main() -> None:
    print(json.dumps({"pending": PENDING, "rounds": ROUNDS, **_core(), **_pending()}))


def _pending() -> dict[str, float]:
    """Return the figures of the operations that 1,000 jobs submit."""
    loop = _placed(1000, devices=200)
    took: list[int] = []
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    _submit(loop, [])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = len(loop.scheduler.cluster.queues.operations)
    assert held >= 1000 * A_JOB, held
    _submit(_placed(1000, devices=200), took)
    return {
        "submitted": float(len(took)),
        "bytes_an_operation": round((after - before) / len(took)),
        **{f"submit_p{q}_us": round(float(np.percentile(took, q)) / 1000, 1) for q in (50, 99)},
    }


def _figures(pick: Callable[[int], None]) -> dict[str, float]:
    cpu, wall = [], []
    for at in range(ROUNDS):
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        pick(at)
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
    return {
        f"{name}_p{q}_us": round(float(np.percentile(values, q)) / 1000, 1)
        for name, values in (("cpu", cpu), ("wall", wall))
        for q in (50, 99)
    }


def _core() -> dict[str, float]:
    """Return the figures of the whole core: five jobs on each device, 64 operations a job."""
    scheduler = _loaded()
    cluster, devices = scheduler.cluster, scheduler.cluster.devices
    assert sum(len(d.pending) for d in cluster.deployments.values()) >= PENDING
    groups = list(dict.fromkeys(devices.groups.values()))
    assert len(groups) == DEVICES, len(groups)

    def pick(at: int) -> None:
        waiting = {}
        for wpg_id in groups[at % DEVICES]:
            wpg = cluster.wpgs[wpg_id]
            operation = None if wpg.running else lanes.startable(cluster.queues, wpg)
            if operation is not None:
                waiting[wpg_id] = operation
        assert len(waiting) > 1, waiting
        contest.in_turn(
            contest.entries(devices, waiting), order=devices.order, now_us=cluster.now_us
        )

    return _figures(pick)


@dataclass(slots=True)
class _Loop:
    """A core whose every order is done at once, until `goes_on` says no."""

    scheduler: Scheduler
    jobs: int
    now_us: int = 0

    def tell(
        self, make: Callable[[int], Event], *, goes_on: bool = True, took: list[int] | None = None
    ) -> None:
        todo: deque[Callable[[int], Event]] = deque([make])
        while todo:
            self.now_us += 1000
            event = todo.popleft()(self.now_us)
            began = time.thread_time_ns()
            actions = self.scheduler.handle(event)
            if took is not None:
                took.append(time.thread_time_ns() - began)
            if goes_on:
                todo.extend(found for a in actions if (found := _outcome(a)) is not None)


def _loaded() -> Scheduler:
    loop = _placed(JOBS, devices=DEVICES)
    _submit(loop, [])
    return loop.scheduler


def _placed(jobs: int, *, devices: int) -> _Loop:
    """Return a core with so many jobs, each on a device that it shares with four others."""
    limits = Limits(max_jobs=jobs, duty_cap_ppm=10**9)
    loop = _Loop(Scheduler(limits=limits, epoch=1), jobs)
    facts = tuple(DeviceFacts(index=i, kind="train", bytes_total=100) for i in range(devices))
    node = NodeId("n")
    loop.tell(lambda us: NodeJoined(at_us=us, node_id=node, devices=facts, host_bytes=10**9))
    for at in range(jobs):
        job_id = JobId(f"job-{at}")
        loop.tell(partial(_job, job_id=job_id))
        loop.tell(partial(_deployment, job_id=job_id))
    return loop


def _submit(loop: _Loop, took: list[int]) -> None:
    for seq in range(1, A_JOB + 1):
        for at in range(loop.jobs):
            job_id = JobId(f"job-{at}")
            make = partial(_operation, job_id=job_id, seq=seq)
            loop.tell(make, goes_on=False, took=took)


def _outcome(action: Action) -> Callable[[int], Event] | None:
    match action:
        case SpawnWpg(wpg_id=wpg_id):
            return lambda us: WpgReady(at_us=us, wpg_id=wpg_id, device_bytes=(60,))
        case MoveState(wpg_id=wpg_id, move_id=move_id):
            return lambda us: ResidencyMoved(
                at_us=us, wpg_id=wpg_id, move_id=move_id, nbytes=60, total_us=1000
            )
        case StartOperation(operation_id=operation_id):
            return lambda us: OperationFinished(
                at_us=us,
                operation_id=operation_id,
                fault=None,
                is_refusal=False,
                run_us=1000,
                digest="",
            )
        case _:
            return None


def _job(at_us: int, job_id: JobId) -> Event:
    return JobSubmitted(at_us=at_us, job_id=job_id, tenant=TenantId("t"))


def _deployment(at_us: int, job_id: JobId) -> Event:
    return DeploymentRequested(
        at_us=at_us,
        deployment_id=DeploymentId(f"{job_id}/actor"),
        job_id=job_id,
        initialize_id=OperationId(f"{job_id}/init".encode().ljust(16)),
        role="actor",
        backend="noop",
        device_kind="train",
        num_devices=1,
        is_rollout=False,
    )


def _operation(at_us: int, job_id: JobId, seq: int) -> Event:
    return OperationSubmitted(
        at_us=at_us,
        operation_id=OperationId(f"{job_id}/{seq}".encode().ljust(16)),
        job_id=job_id,
        deployment_id=DeploymentId(f"{job_id}/actor"),
        seq=seq,
        kind=OperationKind.STEP,
        after=(),
        is_staged=True,
        num_tokens=0,
    )


if __name__ == "__main__":
    main()

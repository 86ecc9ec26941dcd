"""View of the reward proxy: programs, pool, and the batches that a tenant may see."""

from __future__ import annotations

from collections.abc import Iterable

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.reward.core.machine import RewardCore
from plexsvc.reward.core.pools import WorkerPool
from plexsvc.reward.core.state import OpenBatch
from plexsvc.reward.core.vocabulary import BatchId
from plexsvc.reward.programs.base import Program
from plexsvc.reward.programs.registry import PROGRAMS


def rewards_view(
    core: RewardCore,
    request: pb.GetRewardsRequest,
    *,
    own: Iterable[Program],
    sandbox: str,
    now_us: int,
) -> pb.RewardsReply:
    """Return what `plexctl reward` shows."""
    seen = [
        (batch_id, batch)
        for batch_id, batch in core.batches.items()
        if request.is_operator or batch_id.tenant == request.tenant
    ]
    return pb.RewardsReply(
        programs=[program_view(program) for program in (*PROGRAMS.values(), *own)],
        pools=[_pool(core, pool, now_us=now_us) for pool in core.pools.values()],
        batches=[_batch(core, batch_id, batch, now_us=now_us) for batch_id, batch in seen],
        sandbox=sandbox,
    )


def program_view(program: Program) -> pb.RewardProgram:
    """Return what is shown of a program."""
    return pb.RewardProgram(
        name=program.name,
        text=program.text,
        timeout_score=program.timeout_score,
        stages=[
            pb.RewardStage(
                name=stage.name,
                timeout_us=stage.limits.wall_us,
                memory_bytes=stage.limits.memory_bytes,
                is_sandboxed=stage.is_sandboxed,
                resource=stage.resource,
                count=stage.limits.gpus or stage.limits.cpus,
            )
            for stage in program.stages
        ],
        version=program.version,
    )


def _pool(core: RewardCore, pool: WorkerPool, *, now_us: int) -> pb.RewardPool:
    busy = pool.working - pool.starting - len(pool.idle)
    shown = pb.RewardPool(
        name=str(pool.resource),
        queued=len(pool.queue),
        busy=busy,
        starting=pool.starting,
        idle=len(pool.idle),
        limit=core.crew.most(pool.resource),
    )
    plan = pool.planned(now_us)
    if plan is not None:
        shown.planned, shown.held, shown.is_unmet = plan.workers, plan.held, not plan.is_met
    return shown


def _batch(core: RewardCore, batch_id: BatchId, batch: OpenBatch, *, now_us: int) -> pb.RewardBatch:
    running = sum(request.worker is not None for request in batch.requests.values())
    return pb.RewardBatch(
        tenant=batch_id.tenant,
        job_id=batch_id.job_id,
        batch_id=batch_id.batch,
        program=batch.program.name,
        size=batch.size,
        queued=len(batch.requests) - running,
        running=running,
        answered=batch.answered,
        since_us=now_us - batch.begun_us,
        expected_us=batch.expected_end_us - batch.begun_us,
        critical=_critical(core, batch, now_us=now_us),
    )


def _critical(core: RewardCore, batch: OpenBatch, *, now_us: int) -> str:
    """Say which sample the batch waits for: the one with the latest end it may have."""
    if not batch.requests:
        missing = batch.size - batch.answered
        return f"none: {missing} samples have not come yet" if missing else ""
    index = max(batch.requests, key=lambda i: _latest_us(batch, i, now_us=now_us))
    request = batch.requests[index]
    stage = request.program.stages[request.stage]
    left_s = (_latest_us(batch, index, now_us=now_us) - now_us) / 1e6
    what = "runs" if request.worker is not None else "waits for a worker"
    since_s = (now_us - request.since_us) / 1e6
    text = (
        f"sample {index} {what} in stage {stage.name} since {since_s:.1f} s; its stages may take "
        f"{left_s:.1f} s more"
    )
    if request.worker is not None:
        return text
    pool = core.pools[stage.resource]
    if pool.homeless_since_us is not None:
        left_s = (pool.homeless_since_us + core.limits.no_room_us - now_us) / 1e6
        return (
            f"{text}. No node that could have a worker of {pool.resource} is open: they are closed "
            f"or lost; if none is back in {left_s:.0f} s, what waits is answered as an error"
        )
    return f"{text}. {_why_it_waits(_pool(core, pool, now_us=now_us))}"


def _why_it_waits(pool: pb.RewardPool) -> str:
    """Say what the workers do that a sample waits for."""
    text = (
        f"{pool.queued} samples wait for workers of {pool.name}: {pool.busy} are busy, "
        f"{pool.starting} start"
    )
    if not pool.HasField("planned"):
        return f"{text}, and there may be {pool.limit}"
    if pool.is_unmet:
        return f"{text}; not even all {pool.limit} that there may be keep every batch in time"
    return f"{text}; {pool.planned} keep every batch in time by the plan, {pool.held} for now"


def _latest_us(batch: OpenBatch, index: int, *, now_us: int) -> int:
    """Return when a sample has ended at the latest, if it waits no longer."""
    request = batch.requests[index]
    begun_us = request.since_us if request.worker is not None else now_us
    return begun_us + sum(stage.timeout_us for stage in request.program.stages[request.stage :])

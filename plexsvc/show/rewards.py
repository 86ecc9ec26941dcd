"""Tables of the reward service for `plexctl reward`: programs, workers and batches."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.show.status import table_of

_MIB = 1 << 20


def programs_view(reply: pb.RewardsReply) -> RenderableType:
    """Return the programs, one line a stage, and what isolates those that run code."""
    table = table_of(
        "program",
        "version",
        "stage",
        "timeout",
        "holds",
        "memory",
        "sandbox",
        "timeout score",
        "score",
    )
    for program in reply.programs:
        for number, stage in enumerate(program.stages):
            table.add_row(
                program.name if number == 0 else "",
                program.version[:8] if number == 0 else "",
                stage.name,
                f"{stage.timeout_us / 1e6:g} s",
                f"{stage.count} {stage.resource}",
                f"{stage.memory_bytes // _MIB} MiB" if stage.is_sandboxed else "",
                "yes" if stage.is_sandboxed else "",
                f"{program.timeout_score:g}" if number == 0 else "",
                program.text if number == 0 else "",
            )
    return Group(table, Text(f"\nsandbox: {reply.sandbox}"))


def batches_view(reply: pb.RewardsReply) -> RenderableType:
    """Return the pools and the batches that are being scored, the most urgent first."""
    pools = table_of("workers of", "queued", "busy", "idle", "starting", "plan", "held", "at most")
    for pool in reply.pools:
        numbers = (pool.queued, pool.busy, pool.idle, pool.starting)
        pools.add_row(pool.name, *map(str, numbers), *_planned(pool), str(pool.limit))
    table = table_of("batch", "tenant", "job", "program", "done", "runs", "waits", "since", "ends")
    for batch in sorted(reply.batches, key=lambda one: one.expected_us - one.since_us):
        table.add_row(
            batch.batch_id.hex()[:8],
            batch.tenant,
            batch.job_id,
            batch.program,
            f"{batch.answered} / {batch.size}",
            str(batch.running),
            str(batch.queued),
            f"{batch.since_us / 1e6:.1f} s",
            f"{(batch.expected_us - batch.since_us) / 1e6:+.1f} s",
        )
    return Group(pools, Text(), table)


def _planned(pool: pb.RewardPool) -> tuple[str, str]:
    """Return the plan of a pool and what of it is held, in words."""
    if not pool.HasField("planned"):
        return ("follows its queue", "")
    return (f"{pool.planned}{', too few' if pool.is_unmet else ''}", str(pool.held))


def explained(batch: pb.RewardBatch) -> str:
    """Return what a batch waits for, in words."""
    left_s = (batch.expected_us - batch.since_us) / 1e6
    due = f"in {left_s:.1f} s" if left_s >= 0 else f"{-left_s:.1f} s ago"
    return (
        f"{batch.answered} of {batch.size} samples are scored by {batch.program}; the batch was "
        f"expected to end {due}. It waits for {batch.critical or 'nothing'}"
    )

"""Tables of a run: how each tenant fared, and the jobs that waited longest, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.records import Outcome, Record
from plexsvc.sim.summary import slowdown, wait_ratio

NUM_WORST: Final = 10
_HOUR_US: Final = 3600 * SECOND_US


def report(outcome: Outcome, *, title: str) -> str:
    """Return the tables as Markdown."""
    worst = sorted(outcome.records, key=wait_ratio, reverse=True)[:NUM_WORST]
    return "\n".join(
        [
            f"# {title}",
            "",
            f"{len(outcome.losses)} nodes lost, {len(outcome.drains)} drained.",
            "",
            "## Tenants",
            "",
            *_table(
                ("tenant", "jobs", "node-hours", "slowdown p50", "p95", "wait ratio p50", "p99"),
                _tenants(outcome.records),
            ),
            "",
            "## The jobs that waited longest",
            "",
            *_table(
                ("job", "nodes", "alone h", "wait ratio", "slowdown", "most of it"),
                [
                    (
                        record.job.demand.resident_id,
                        str(record.job.demand.num_units),
                        f"{record.alone_us / _HOUR_US:.2f}",
                        f"{wait_ratio(record):.2f}",
                        f"{slowdown(record):.3f}",
                        reason(record),
                    )
                    for record in worst
                ],
            ),
            "",
        ]
    )


def reason(record: Record) -> str:
    """Say what took most of the time that a job had to wait, and how much it was."""
    parts = _parts(record)
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] <= 0:
        return "nothing: it did not wait"
    return f"{parts[largest] / _HOUR_US:.2f} h {largest}"


def _parts(record: Record) -> dict[str, int]:
    """Return where a job's time beyond its own went; what is left waited for others' operations."""
    assert record.start_us is not None, record
    assert record.finish_us is not None, record
    lost = f"after {len(record.restarts)} lost nodes, and the work lost with them"
    parts = {
        "in the queue": record.start_us - record.job.demand.arrived_us,
        "for its own switches": sum(end - start for start, end in record.switch),
        f"in {len(record.moves)} moves": sum(m.until_us - m.since_us for m in record.moves),
        lost: sum(end - start for start, end in record.lost) + _homeless_us(record),
    }
    excess = record.finish_us - record.job.demand.arrived_us - record.alone_us
    parts["behind operations of others"] = excess - sum(parts.values())
    return parts


def _homeless_us(record: Record) -> int:
    """Return how long a job that lost its nodes was without others."""
    total = 0
    for restart in record.restarts:
        later = [stay.since_us for stay in record.stays if stay.since_us >= restart.at_us]
        total += min(later, default=restart.at_us) - restart.at_us
    return total


def _tenants(records: Sequence[Record]) -> list[tuple[str, ...]]:
    by_tenant: dict[str, list[Record]] = {}
    for record in records:
        by_tenant.setdefault(record.job.demand.tenant or "(none)", []).append(record)
    rows = []
    for tenant, own in sorted(by_tenant.items()):
        slow, waits = [slowdown(r) for r in own], [wait_ratio(r) for r in own]
        used = sum(r.job.demand.num_units * (end - start) for r in own for start, end in r.busy)
        shares = [np.percentile(slow, 50), np.percentile(slow, 95)]
        shares += [np.percentile(waits, 50), np.percentile(waits, 99)]
        rows.append(
            (tenant, str(len(own)), f"{used / _HOUR_US:.1f}", *(f"{x:.3f}" for x in shares))
        )
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]

"""Checks the lines of `jobs.jsonl` by themselves, as someone who trusts nothing else would."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
CLOSE_S = 2e-6


@dataclass(frozen=True, slots=True)
class Span:
    start_s: float
    end_s: float
    kind: str
    job_id: str
    switch_cost_s: float
    may_be_built: bool
    """Whether it may be the first operation since the job's processes came there."""


def check_lines(lines: Sequence[Line]) -> None:
    """Raise AssertionError unless nothing overlaps, no switch is hidden and no work is lost."""
    for node, spans in spans_by_node(lines).items():
        check_order(node, spans)
        check_residents(node, spans)


def spans_by_node(lines: Sequence[Line]) -> dict[str, list[Span]]:
    """Check each job's own work; return in order who used each node when."""
    by_node: dict[str, list[Span]] = {}
    for line in lines:
        check_work(line)
        for span, nodes in spans_of(line):
            for node in nodes:
                by_node.setdefault(node, []).append(span)
    for spans in by_node.values():
        spans.sort(key=lambda span: (span.start_s, span.end_s))
    return by_node


def check_work(line: Line) -> None:
    """Every operation ran for its sampled time, in the order of the cycle, as often as asked."""
    busy, phases = line["busy"], line["phases"]
    segments = {s["phase"]: s["duration_s"] for s in line["segment_s"]}
    assert len(busy) == len(phases), line["job_id"]
    for phase, (start_s, end_s) in zip(phases, busy, strict=True):
        assert math.isclose(end_s - start_s, segments[phase], abs_tol=CLOSE_S), line["job_id"]
    for one, two in itertools.pairwise(busy):
        assert one[1] <= two[0] + CLOSE_S, line["job_id"]
    ran: Counter[str] = Counter(phases)
    cycles = int(line["cycles"])
    is_boundary = line["sync_at"] == "boundary" and line["mode"] == "async1"
    for phase in segments:
        least = cycles
        if is_boundary and phase == "sync":  # the last two publish nothing; a restart publishes
            least = max(0, cycles - 2 - 2 * len(line["restarts"]))
        if line["restarts"]:
            assert ran[phase] >= least, (line["job_id"], phase)
        else:
            assert least <= ran[phase] <= cycles, (line["job_id"], phase)
    assert float(str(line["start_s"])) >= float(str(line["arrival_s"])) - CLOSE_S, line["job_id"]
    took_s = float(str(line["finish_s"])) - float(str(line["start_s"]))
    assert took_s >= float(str(line["alone_s"])) - CLOSE_S, line["job_id"]
    tiers = line["bytes"]
    parked = tiers["host_per_node"] + tiers["disk_per_node"]
    assert parked == tiers["device_per_node"], line["job_id"]


def spans_of(line: Line) -> list[tuple[Span, list[str]]]:
    stays = line["stays"]
    found = []
    for name, kind in (("busy", "run"), ("lost", "run"), ("switch", "in"), ("prefetch", "in")):
        for start_s, end_s in line[name]:
            stay = [s for s in stays if s["since_s"] <= start_s + CLOSE_S][-1]
            for move in line["moves"]:
                is_before = end_s <= move["at_s"] + CLOSE_S
                assert is_before or start_s >= move["until_s"] - CLOSE_S, (line["job_id"], name)
            job_id, cost_s = str(line["job_id"]), float(str(line["switch_cost_s"]))
            is_first = not any(
                stay["since_s"] - CLOSE_S <= s < start_s for s, _ in (*line["busy"], *line["lost"])
            )
            found.append((Span(start_s, end_s, kind, job_id, cost_s, is_first), stay["nodes"]))
    return found


def check_order(node: str, spans: Sequence[Span]) -> None:
    """No two at once."""
    for one, two in itertools.pairwise(spans):
        assert one.end_s <= two.start_s + CLOSE_S, (node, one, two)


def check_residents(node: str, spans: Sequence[Span]) -> None:
    """Whoever runs was brought in after the one before, or has just been built there."""
    resident = None
    for span in spans:
        if span.kind == "in" or span.may_be_built:
            resident = span.job_id
        elif span.switch_cost_s:
            assert resident == span.job_id, (node, resident, span)

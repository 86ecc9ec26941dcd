"""Plan figures of a demo: what the planner said about the jobs that shared the device."""

from __future__ import annotations

from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.report import PlanFigures

PPM: Final = 1_000_000


def plan_figures(plan: service_pb2.PackReply | None) -> PlanFigures:
    """Return the figures of the group that the jobs shared; empty if they never did."""
    reply = plan or service_pb2.PackReply()
    residents = [r for group in reply.groups if len(group.residents) > 1 for r in group.residents]
    return PlanFigures(
        predicted_slowdown={r.job_name: r.predicted_ppm / PPM for r in residents},
        measured_slowdown={r.job_name: r.measured_ppm / PPM for r in residents if r.measured_ppm},
        was_warm=bool(residents) and not any(r.is_cold for r in residents),
        prefetches=reply.prefetches,
        prefetch_hits=reply.prefetch_hits,
    )

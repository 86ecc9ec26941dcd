"""A serving engine as people read it: latencies with and without lending, and the harvest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from plexsvc.show.status import table_of


def report_view(report: Mapping[str, Any]) -> RenderableType:
    """Return the report of an engine as a table and a line."""
    table = table_of("", "requests", "ms", "p50", "p90", "p99", "objective", "")
    for which in ("alone", "lending"):
        found = report[which]
        for name in ("ttft", "tpot"):
            times = found[name]
            shown = [f"{times[p]:.1f}" if p in times else "-" for p in ("p50", "p90", "p99")]
            verdict = "kept" if times["is_kept"] else "missed"
            objective = f"{times['objective']:g}"
            requests = str(found["requests"])
            table.add_row(which, requests, name.upper(), *shown, objective, verdict)
    if "harvested_tokens" not in report:
        return table
    share = f"{100 * report['harvested_share_of_idle']:.0f} %"
    state = "lends" if report["is_lent"] else "does not lend now"
    tokens = report["harvested_tokens"]
    lines = [f"{report['name']} {state}: {tokens} tokens harvested in {share} of its idle time"]
    if len(report["guests"]) > 1:
        lines += [
            f"  {one['name']}: {one['tokens']} tokens in {100 * one['share_of_idle']:.0f} %"
            for one in report["guests"]
        ]
    return Group(table, *lines)

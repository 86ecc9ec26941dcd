"""`plexctl simulate`: play a trace or a preset on a simulated cluster."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plexsvc.sim.presets import Workload
    from plexsvc.sim.summary import Summary


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="JSONL trace of jobs; or give --preset.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="JSON file of the cluster.")] = None,
    preset: Annotated[str | None, typer.Option(help="A named workload: cluster-256, ...")] = None,
    policy: Annotated[
        str, typer.Option(help="isolated, pack, spread, spread_backfill, plex, ...")
    ] = "plex",
    cold: Annotated[
        bool, typer.Option("--cold", help="No job's cycle is known before it was measured.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of samples and faults.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory for per-job lines, plots, a Perfetto trace.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Play jobs on a simulated cluster: the scheduler that runs live decides.

    A line of TRACE needs job_id, arrival_s, nodes, cycles, period_s and
    segments, a list of {phase, offset_s, duration_s}. It may have mode (sync,
    async1), sync_at (update, boundary), jitter_cv, max_slowdown, state_gb,
    rollout_nodes, deployments, priority and tenant. A cluster needs {"nodes": N}.
    docs/simulator.md says what they mean, and what else there is.
    """
    from plexsvc.scheduler.core.planning.policies import policy_named
    from plexsvc.sim.output import make_directory, write_outputs
    from plexsvc.sim.run import compare, play

    chosen = policy_named(policy)
    workload = _workload(trace, cluster=cluster, preset=preset, seed=seed)
    if out is not None:
        make_directory(out)
    typer.echo(f"{len(workload.jobs)} jobs on {workload.cluster.nodes} nodes", err=True)
    isolated = play(workload, policy=policy_named("isolated"), seed=seed)
    summary, outcome = compare(workload, policy=chosen, seed=seed, isolated=isolated, is_cold=cold)
    if out is not None:
        write_outputs(
            out, workload=workload, summary=summary, outcome=outcome, isolated=isolated.outcome
        )
    _show(summary, json=json)


def _workload(
    trace: Path | None, *, cluster: Path | None, preset: str | None, seed: int
) -> Workload:
    from plexsvc.sim.presets import Workload, preset_named
    from plexsvc.sim.trace import read_cluster, read_trace

    if preset is not None:
        if trace is not None or cluster is not None:
            raise typer.BadParameter("give either --preset or TRACE with --cluster")
        return preset_named(preset, seed=seed)
    if trace is None or cluster is None:
        raise typer.BadParameter("give TRACE with --cluster, or --preset")
    read = read_cluster(cluster)
    return Workload(jobs=read_trace(trace, cluster=read), cluster=read)


def _show(summary: Summary, *, json: bool) -> None:
    from dataclasses import asdict

    values = asdict(summary)
    if json:
        typer.echo(jsonlib.dumps(values))
        return
    for name, value in values.items():
        typer.echo(f"{name:22} {value}")

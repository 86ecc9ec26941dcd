"""`plexctl simulate`: play a trace or a preset on a simulated cluster."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plexsvc.scheduler.core.planning.policies import Policy
    from plexsvc.sim.summary import Summary
    from plexsvc.sim.workloads import Workload


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="JSONL trace of jobs; or give --preset.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="JSON file of the cluster.")] = None,
    preset: Annotated[str | None, typer.Option(help="A named workload: cluster-256, ...")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="plex (the default), isolated, pack, spread_backfill, ...; repeatable."),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="No job's cycle is known before it was measured.")
    ] = False,
    unknown_lengths: Annotated[
        bool, typer.Option("--unknown-lengths", help="No job says how long it will run.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of samples and faults.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory for per-job lines, a report and a picture.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write trace.jsonl and cluster.json there; play nothing.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Play jobs on a simulated cluster: the scheduler that runs live decides.

    A line of TRACE needs job_id, arrival_s, nodes, cycles, period_s and
    segments, a list of {phase, offset_s, duration_s}. It may have mode (sync,
    async1), sync_at (update, boundary), jitter_cv, max_slowdown, state_gb,
    rollout_nodes, deployments, expected_cycles, priority, tenant, switch_s,
    believed and grown. A cluster needs {"nodes": N}.
    docs/reference/traces.md says what they mean, and what else there is.
    """
    from plexsvc.scheduler.core.planning.policies import policy_named

    chosen = [policy_named(name) for name in policy or ["plex"]]
    workload = _read(trace, cluster=cluster, preset=preset, seed=seed)
    if unknown_lengths:
        workload = workload.without_lengths()
    if export is not None:
        _export(export, workload, json=json)
        return
    what = f"{len(workload.jobs)} jobs on {workload.cluster.nodes} nodes"
    title = f"{trace.name if trace else preset}, seed {seed}{', cold' if cold else ''}: {what}"
    _play(workload, chosen, seed=seed, cold=cold, out=out, title=title, json=json)


def _play(
    workload: Workload,
    chosen: list[Policy],
    *,
    seed: int,
    cold: bool,
    out: Path | None,
    title: str,
    json: bool,
) -> None:
    """Play a workload under each policy, and show and write what came of it."""
    from plexsvc.errors import PlexError
    from plexsvc.sim.files import make_directory
    from plexsvc.sim.output import FILES, write_failure, write_outputs
    from plexsvc.sim.run import baseline, compare

    outs = _directories(out, [one.name for one in chosen])
    for folder in outs.values():
        make_directory(folder, without=FILES)
    typer.echo(title, err=True)
    isolated = baseline(workload, seed=seed)
    if isinstance(isolated, PlexError):
        typer.echo(f"isolated never ends, so there are no ratios: {isolated.message}", err=True)
    for one in chosen:
        try:
            summary, outcome = compare(
                workload, policy=one, seed=seed, isolated=isolated, is_cold=cold
            )
        except PlexError as error:
            if one.name in outs:
                write_failure(outs[one.name], error, policy=one.name, seed=seed)
            raise
        _show(summary, json=json)
        if one.name in outs:
            write_outputs(
                outs[one.name],
                summary=summary,
                outcome=outcome,
                title=f"{title}, {one.name}",
            )


def _export(out: Path, workload: Workload, *, json: bool) -> None:
    from plexsvc.sim.trace import export

    trace, cluster = export(out, workload)
    paths = {"trace": str(trace), "cluster": str(cluster)}
    command = f"plexctl simulate {trace} --cluster {cluster}"
    typer.echo(jsonlib.dumps(paths) if json else command)


def _directories(out: Path | None, policies: list[str]) -> dict[str, Path]:
    """Return where each policy's files go: in `out`, or in one below it for each of several."""
    if out is None:
        return {}
    return {name: out / name if len(policies) > 1 else out for name in policies}


def _read(trace: Path | None, *, cluster: Path | None, preset: str | None, seed: int) -> Workload:
    from plexsvc.sim.presets import preset_named
    from plexsvc.sim.trace import read_cluster, read_trace
    from plexsvc.sim.workloads import Workload

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

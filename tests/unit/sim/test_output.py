"""The files a simulation leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import PlexError
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.output import FILES, NUM_WORST, reason, report
from plexsvc.sim.presets import preset_named
from plexsvc.sim.records import Record
from tests.rigs.outside_checker import check_lines
from tests.rigs.records import moved_record, outcome_of


def line(name: str, **more: object) -> dict[str, object]:
    segments = [{"phase": "update", "offset_s": 0, "duration_s": 10}]
    return {
        "job_id": name,
        "arrival_s": 0,
        "nodes": 1,
        "cycles": 5,
        "period_s": 100,
        "segments": segments,
        **more,
    }


def simulate(folder: Path, *jobs: dict[str, object], **cluster: object) -> list[str]:
    """Write a trace and a cluster file; return the command that plays them."""
    trace, file = folder / "trace.jsonl", folder / "cluster.json"
    trace.write_text("\n".join(json.dumps(job) for job in jobs))
    file.write_text(json.dumps({"nodes": 2, **cluster}))
    return ["simulate", str(trace), "--cluster", str(file), "--out", str(folder / "out")]


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    command = simulate(tmp_path, line("a", tenant="red"), line("b", arrival_s=5, nodes=2))
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    lines = lines_of(out / "jobs.jsonl")
    assert [one["job_id"] for one in lines] == ["a", "b"]
    check_lines(lines)
    assert "| red | 1 |" in (out / "report.md").read_text()


def test_several_policies_have_a_directory_each(tmp_path: Path) -> None:
    command = simulate(tmp_path, line("a"), line("b"), line("c"))
    result = CliRunner().invoke(
        app, [*command, "--json", "--policy", "plex", "--policy", "spread_backfill"]
    )
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    summaries = [json.loads(text) for text in result.stdout.splitlines()]
    assert [one["policy"] for one in summaries] == ["plex", "spread_backfill"]
    for one in summaries:
        assert json.loads((out / one["policy"] / "summary.json").read_text()) == one
    assert {path.name for path in out.iterdir()} == {"plex", "spread_backfill"}


def test_a_run_that_never_ends_leaves_only_the_reason(tmp_path: Path) -> None:
    command = simulate(tmp_path, line("a"))
    assert CliRunner().invoke(app, command).exit_code == 0
    closed = [{"at_s": 0, "cordon": name} for name in ("n00000", "n00001")]
    simulate(tmp_path, line("a"), events=closed)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    (left,) = (tmp_path / "out").iterdir()
    assert left.name == "summary.json"
    assert "never ended" in json.loads(left.read_text())["error"]


def test_a_run_says_why_it_has_no_ratios(tmp_path: Path) -> None:
    jobs = [line("a", nodes=2, cycles=40), line("b", nodes=2, arrival_s=20)]
    result = CliRunner().invoke(
        app,
        [*simulate(tmp_path, *jobs, events=[{"at_s": 40, "cordon": "n00001"}]), "--json"],
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["drain_ratio"] is None
    assert "b/actor" in summary["isolated_error"]
    assert summary["isolated_error"] in result.stderr


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlexError, match="cluster-256, stale-half"):
        preset_named("cluster-257", seed=1)


def queued(record: Record, *, wait_s: int) -> Record:
    """Return a job that waits for its first place and for nothing else."""
    return replace(
        record,
        start_us=wait_s * SECOND_US,
        finish_us=wait_s * SECOND_US + record.alone_us,
        moves=[],
        restarts=[],
    )


def test_the_reason_is_what_took_most() -> None:
    assert "after 1 lost nodes" in reason(moved_record())
    assert reason(queued(moved_record(), wait_s=3600)) == "1.00 h in the queue"
    assert reason(queued(moved_record(), wait_s=0)) == "nothing: it did not wait"


def test_a_job_behind_others_operations_says_so() -> None:
    late = queued(moved_record(), wait_s=0)
    late.finish_us = (late.finish_us or 0) + 7200 * SECOND_US
    assert reason(late) == "2.00 h behind operations of others"


def test_tenants_and_the_worst_jobs_are_listed() -> None:
    records = [
        queued(moved_record(f"j{at}", tenant=f"t{at % 2}"), wait_s=100 * at) for at in range(12)
    ]
    text = report(outcome_of(*records), title="a run")
    assert "| t0 | 6 |" in text
    assert "| t1 | 6 |" in text
    worst = [line for line in text.splitlines() if line.startswith("| j")][1:]
    assert len(worst) == NUM_WORST
    assert worst[0].startswith("| j11 ")

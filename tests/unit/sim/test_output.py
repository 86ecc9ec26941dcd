"""The files a simulation leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import PlexError
from plexsvc.sim.output import FILES
from plexsvc.sim.presets import preset_named
from tests.rigs.outside_checker import check_lines


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
    assert (out / "run.png").read_bytes().startswith(b"\x89PNG")


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

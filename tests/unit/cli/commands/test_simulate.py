"""`plexctl simulate` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from plexsvc.cli.commands.simulate import simulate
from plexsvc.errors import PlexError

LINE = {
    "arrival_s": 0,
    "nodes": 1,
    "cycles": 4,
    "period_s": 100,
    "segments": [{"phase": "update", "offset_s": 0, "duration_s": 20}],
    "mode": "async1",
}


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(simulate)
    return made


def test_a_trace_comes_to_one_line_of_json(app: typer.Typer, tmp_path: Path) -> None:
    trace, cluster = tmp_path / "trace.jsonl", tmp_path / "cluster.json"
    trace.write_text("\n".join(json.dumps({"job_id": f"j{i}", **LINE}) for i in range(3)))
    cluster.write_text('{"nodes": 1}')
    done = CliRunner().invoke(app, [str(trace), "--cluster", str(cluster), "--json"])
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert (summary["policy"], summary["jobs"]) == ("plex", 3)
    assert summary["drain_ratio"] < 0.5


def test_a_bad_trace_writes_nothing(app: typer.Typer, tmp_path: Path) -> None:
    trace, cluster, out = tmp_path / "trace.jsonl", tmp_path / "cluster.json", tmp_path / "out"
    trace.write_text(json.dumps({"job_id": "a", **LINE, "nodes": 2}))
    cluster.write_text('{"nodes": 1}')
    done = CliRunner().invoke(app, [str(trace), "--cluster", str(cluster), "--out", str(out)])
    assert isinstance(done.exception, PlexError)
    assert "line 1, field nodes" in str(done.exception)
    assert not out.exists()


def test_a_trace_needs_its_cluster(app: typer.Typer, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [str(tmp_path / "trace.jsonl")]).exit_code == 2
    assert CliRunner().invoke(app, ["x", "--preset", "churn"]).exit_code == 2


def test_a_directory_that_cannot_be_is_refused_before_anything_runs(
    app: typer.Typer, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    options = ["--preset", "two-job-7b", "--out", str(taken / "out")]
    done = CliRunner().invoke(app, options)
    assert isinstance(done.exception, PlexError)
    assert "cannot be a directory for outputs" in str(done.exception)


@pytest.mark.parametrize("options", [[], ["--cold"]])
def test_a_cluster_file_with_faults_and_events_is_played_warm_and_cold(
    app: typer.Typer, tmp_path: Path, options: list[str]
) -> None:
    trace, cluster, out = tmp_path / "trace.jsonl", tmp_path / "cluster.json", tmp_path / "out"
    more = {"rollout_nodes": 1, "deployments": 2, "cycles": 40}
    two = [{"phase": name, "offset_s": at, "duration_s": 10} for name, at in (("a", 0), ("b", 10))]
    line = {**LINE, **more, "segments": two}
    trace.write_text("\n".join(json.dumps({"job_id": f"j{i}", **line}) for i in range(2)))
    events = [{"at_s": 90, "drain": "n00001"}, {"at_s": 300, "join": "n00009"}]
    faults = {"node_mtbf_h": 1, "repair_s": 60}
    cluster.write_text(json.dumps({"nodes": 5, "faults": faults, "events": events}))
    files = [str(trace), "--cluster", str(cluster), "--json", "--out", str(out)]
    done = CliRunner().invoke(app, [*files, *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(text) for text in (out / "jobs.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert any(found["restarts"] for found in lines)


def test_a_negative_seed_is_misuse(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["--preset", "two-job-7b", "--seed", "-1"]).exit_code == 2

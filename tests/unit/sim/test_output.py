"""The files a simulation leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plexsvc.errors import PlexError
from plexsvc.scheduler.core.planning.policies import POLICIES
from plexsvc.sim.output import write_outputs
from plexsvc.sim.presets import preset_named
from plexsvc.sim.run import compare, play


@pytest.mark.slow
def test_the_lines_of_a_run_let_it_be_checked_from_outside(tmp_path: Path) -> None:
    workload = preset_named("two-job-7b", seed=1)
    isolated = play(workload, policy=POLICIES["isolated"], seed=1)
    summary, outcome = compare(workload, policy=POLICIES["plex"], seed=1, isolated=isolated)
    write_outputs(
        tmp_path, workload=workload, summary=summary, outcome=outcome, isolated=isolated.outcome
    )
    assert json.loads((tmp_path / "summary.json").read_text())["policy"] == "plex"
    lines = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert [line["job_id"] for line in lines] == ["7b-0", "7b-1"]
    for line in lines:
        assert len(line["busy"]) == len(line["phases"]) == 3 * line["cycles"]
        assert line["finish_s"] - line["start_s"] >= line["alone_s"]
    events = json.loads((tmp_path / "perfetto.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["name"] == "update" for event in events) == 200
    for name in ("utilisation.png", "wait_cdf.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlexError, match="cluster-256, cluster-256-boundary"):
        preset_named("cluster-257", seed=1)

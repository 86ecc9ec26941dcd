"""A live journal replayed: the same actions, and a wall time that a simulation predicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.journal import NOTE_EVERY
from plexsvc.sim.predict import predict
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs.live_cluster import TRAIN, LiveCluster, start_cluster
from tests.rigs.live_jobs import PacedJob, run_together

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

SAME_SIZE = 0.25
"""Loose, for other work may slow one half of a test; `benchmarks/live_replay.py` has the figure."""
JOBS = [
    PacedJob(name=f"job-{at}", seed=at, cycles=8 - at, gap_s=0.2 + 0.1 * at, start_s=0.1 * at)
    for at in range(5)
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """Five jobs on three node groups, each of which holds one at a time; the service still runs."""
    nodes = {f"node-{name}": [TRAIN] for name in "abc"}
    with start_cluster(tmp_path_factory.mktemp("replayed"), nodes=nodes) as live:
        assert run_together(live, JOBS, model=tiny_model) == [job.cycles for job in JOBS]
        assert _switches(live) > 0, "the jobs did not share"
        yield live.state_dir / "plexsvc.db"


def _switches(live: LiveCluster) -> int:
    return sum(device.switches for device in live.status().devices)


def test_a_live_journal_replays_to_the_identical_actions(database: Path) -> None:
    verdict = verify(journal.read(read_journal(str(database)).rows))
    assert verdict.difference is None
    assert verdict.compared >= verdict.events - 2 * NOTE_EVERY  # the last ones are told later
    operations = sum(job.cycles * (job.passes + 1) for job in JOBS)
    assert verdict.events > 2 * operations


def test_its_wall_time_is_predicted_from_its_first_half(database: Path) -> None:
    found = predict(journal.read(read_journal(str(database)).rows))
    assert found.is_complete
    assert len(found.jobs) == len(JOBS)
    assert abs(found.run.error) < SAME_SIZE


def test_the_command_tells_both_of_a_running_service(database: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["replay", str(database), "--predict", "--json", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["is_identical"]
    lines = (tmp_path / "jobs.jsonl").read_text().splitlines()
    assert {json.loads(line)["job_id"] for line in lines} == set(told["predicted"]["jobs"])

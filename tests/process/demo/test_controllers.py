"""The example controllers as submitted jobs on the real service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plexsvc
from plexsvc.demo.records import read_record
from tests.rigs.live_cluster import LiveCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]
EXAMPLES = Path(plexsvc.__file__).resolve().parents[1] / "examples"


def submit(cluster: LiveCluster, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "plexsvc.cli.main", "submit", "--attach"]
    where = ["--state-dir", str(cluster.state_dir), str(EXAMPLES / script)]
    return subprocess.run([*argv, *where, *args], capture_output=True, text=True, check=False)


def test_a_model_is_warmed_up_exported_and_trained_by_submitted_controllers(
    cluster: LiveCluster, tiny_model: Path, tmp_path: Path
) -> None:
    warm = tmp_path / "warm"
    steps = ["--min-steps=4", "--every=2", "--max-steps=6", "--sequences=16", "--goal=0"]
    places = [f"--model={tiny_model}", f"--export={warm}"]
    done = submit(cluster, "warm_up.py", "--tasks", "chain_sum", *steps, *places)
    assert done.returncode == 0, done.stderr + done.stdout
    out = tmp_path / "record.jsonl"
    sizes = ["--task=chain_sum", "--steps=3", "--prompts=2", "--group=4", "--wait-ms=20"]
    done = submit(cluster, "grpo_arithmetic.py", *sizes, f"--model={warm}", f"--out={out}")
    assert done.returncode == 0, done.stderr + done.stdout
    record = read_record(out)
    assert len(record.steps) == 3
    assert all(step.gap_max <= 1e-3 and step.wait_s >= 0.02 for step in record.steps)
    assert all(step.device_s > 0 for step in record.steps)


def test_programs_are_scored_by_the_sandbox_and_hostile_ones_beside_them_fail(
    cluster: LiveCluster, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record.jsonl"
    sizes = ["--task=write_choice", "--steps=2", "--prompts=2", "--group=2"]
    done = submit(cluster, "grpo_arithmetic.py", *sizes, f"--model={tiny_model}", f"--out={out}")
    assert done.returncode == 0, done.stderr + done.stdout
    record = read_record(out)
    assert len(record.steps) == 2
    assert record.hostile_sent == record.hostile_failed == 7


def test_a_warm_up_that_misses_its_goal_is_a_failed_job(
    cluster: LiveCluster, tiny_model: Path, tmp_path: Path
) -> None:
    steps = ["--min-steps=1", "--every=1", "--max-steps=1", "--sequences=4", "--goal=1"]
    places = [f"--model={tiny_model}", f"--export={tmp_path / 'warm'}"]
    done = submit(cluster, "warm_up.py", "--tasks", "chain_sum", *steps, *places)
    assert done.returncode == 1
    assert "below the goal of 1.0" in done.stdout
    job = next(job for job in cluster.jobs().values() if "below the goal" in job.reason)
    assert job.exit_code == 1

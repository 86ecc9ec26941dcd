"""The program for the first hour on a GPU, on a machine that may have none."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_first_hour
from plexsvc.statelink.cuda import gpus

pytestmark = [pytest.mark.process, pytest.mark.slow]

without_gpu = pytest.mark.skipif(bool(gpus()), reason="this machine has a GPU: NOT RUN")


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "benchmarks.gpu_first_hour", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return done.returncode, json.loads(done.stdout)


@without_gpu
def test_without_a_gpu_every_probe_says_that_it_was_skipped() -> None:
    code, found = run()
    assert code == 0
    assert found["probes"] == {name: {"skipped": "no GPU"} for name in gpu_first_hour.PROBES}
    assert found["hardware"]["gpus"] == []
    assert found["hardware"]["cpus"] > 0
    assert found["versions"]["torch"]


def test_what_a_cpu_device_can_do_is_tried_there_and_what_it_wrote_is_kept(tmp_path: Path) -> None:
    probes = ["park", "publish", "switch", "attention"]
    code, found = run("--on-cpu", "--logs", str(tmp_path / "logs"), "--only", *probes)
    assert code == 0, found
    assert "moved" in (tmp_path / "logs/park.log").read_text()
    assert found["probes"]["park"]["address_stays"]
    assert found["probes"]["park"]["bytes_survive"]
    assert found["probes"]["publish"]["published_bytes"] > 0
    assert found["probes"]["switch"]["both_at_once_s"] > 0
    assert found["probes"]["attention"] == {"skipped": "it needs a GPU"}


@without_gpu
def test_a_probe_that_fails_tells_why_and_costs_its_own_answer_only() -> None:
    failed = gpu_first_hour.run_probe("park", memory="cuda")
    assert "exit code" in str(failed["failed"])
    assert "cannot be used here" in str(failed["log_tail"])


def test_a_figure_that_is_false_fails_its_probe() -> None:
    part = {"equal_alone": False, "switches": 18}
    failed = gpu_first_hour.judged({"survives": False, "parameters": 0, "megatron": part})
    assert failed["failed"] == "not so: survives, megatron.equal_alone"
    assert "failed" not in gpu_first_hour.judged({"survives": True, "parameters": 0})


def test_without_vllm_what_generates_is_skipped_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    skipped = {
        name
        for name, probe in gpu_first_hour.PROBES.items()
        if gpu_first_hour.why_skipped(probe, memory="cuda") == "vLLM is not installed"
    }
    assert skipped == {"continuation", "two_engines", "one_gpu_job"}


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = replace(gpu_first_hour.PROBES["train"], limit_s=1)
    monkeypatch.setattr(gpu_first_hour, "PROBES", {"train": hasty})
    assert gpu_first_hour.run_probe("train", memory="cpu")["failed"] == "no answer within 1 s"

"""Demo of a serving engine that lends: a job learns without what it leaves, then with it.

The engine serves traffic all the time (`traffic.py`), by vLLM's OpenAI application. While it lends,
the job has its guest as an instance beside its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from plexsvc.demo import plots
from plexsvc.demo.acts import Acts
from plexsvc.demo.model import VOCAB_SIZE, device_bytes_for_one
from plexsvc.demo.presets import Preset
from plexsvc.demo.report import Check
from plexsvc.demo.serving_report import ServingAct, ServingPoint, checks, summarise
from plexsvc.demo.show import Show, marks
from plexsvc.demo.stage import open_stage
from plexsvc.demo.traffic import Traffic
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.serving.control import ask
from plexsvc.show.serving import report_view

STATE: Final = "state-serving"
PICTURE: Final = "serving.png"
NAME: Final = "chat"
SLO_TTFT_S: Final = 1.0
SLO_TPOT_S: Final = 0.25
MAX_NUM_SEQS: Final = 16
"""Samples of the job's own engine's step."""
ROLLOUT_BYTES: Final = 1 << 30
KV_BYTES: Final = 128 << 20
LOOK_S: Final = 1.0
STOP_S: Final = 30.0


def run(preset: Preset, *, out_dir: Path, talk: Console, as_json: bool) -> list[Check]:
    """Play both acts, write summary and picture, print the verdict; return what was checked.

    Raises:
        PlexError: when the cluster, the engine or a job fails.
    """
    with Show(talk) as show:
        act = _play(preset, out_dir=out_dir, show=show)
    summary = summarise(act, samples_per_step=preset.prompts * preset.group)
    found = checks(summary)
    plots.plot_serving(out_dir / PICTURE, act)
    _write_json(out_dir / "summary.json", asdict(summary))
    told = {"preset": asdict(preset), "checks": [asdict(check) for check in found]}
    _write_json(out_dir / "checks.json", told)
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        console = Console()
        console.print(report_view(act.report))
        for mark in marks(found):
            console.print(mark)
    return found


def _play(preset: Preset, *, out_dir: Path, show: Show) -> ServingAct:
    acts, task = Acts(preset, out_dir=out_dir, show=show), preset.tasks[:1]
    with open_stage(
        out_dir / STATE,
        device_bytes=device_bytes_for_one(acts.num_parameters),
        rollout_bytes=ROLLOUT_BYTES,
        max_num_seqs=MAX_NUM_SEQS,
    ) as stage:
        acts.warm_up(stage)
        show.act("starting a serving engine that lends")
        with (
            _served(out_dir) as address,
            Traffic(
                address, name=NAME, rate=preset.requests_per_s, seed=0, vocab_size=VOCAB_SIZE
            ) as traffic,
        ):
            show.act("the job without what the engine leaves")
            (without,) = acts.play(stage, task, label="without")
            show.act("the job with what the engine lends")
            with _noted(out_dir) as points:
                (lent,) = acts.play(stage, task, label="lent", serving=1)
            report = _report(out_dir)
        return ServingAct(
            without=without,
            lent=lent,
            spans=stage.spans(),
            report=report,
            points=points,
            sent=traffic.sent,
            answered=traffic.answered,
        )


@contextmanager
def _served(out_dir: Path) -> Iterator[str]:
    """Serve the fresh model, and lend to jobs of the warm one; yield the application's address."""
    models, state = out_dir / "models", out_dir / STATE
    command = [sys.executable, "-m", "plexsvc.cli.main", "serve", str(models / "fresh")]
    command += ["--name", NAME, "--port", "0", "--json", "--kv-bytes", str(KV_BYTES)]
    command += ["--slo-ttft", str(SLO_TTFT_S), "--slo-tpot", str(SLO_TPOT_S)]
    command += ["--lend", "--lend-model", str(models / "warm"), "--cluster", str(state)]
    command += ["--state-dir", str(state)]
    log_path = out_dir / "logs" / "serve.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        if not told:
            text = f"the serving engine did not start; its log is {log_path}"
            raise PlexError(ErrorCode.UNAVAILABLE, text)
        yield str(json.loads(told)["address"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def _noted(out_dir: Path) -> Iterator[list[ServingPoint]]:
    """Note what the guest has made, as long as the block runs."""
    points: list[ServingPoint] = []
    over, began_s = threading.Event(), time.monotonic()

    def look() -> None:
        while not over.wait(LOOK_S):
            tokens = int(_report(out_dir)["harvested_tokens"])
            points.append(ServingPoint(at_s=time.monotonic() - began_s, tokens=tokens))

    looking = threading.Thread(target=look, name="report")
    looking.start()
    try:
        yield points
    finally:
        over.set()
        looking.join()


def _report(out_dir: Path) -> dict[str, Any]:
    return asyncio.run(ask(out_dir / STATE / "serving" / f"{NAME}.sock", "report"))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")

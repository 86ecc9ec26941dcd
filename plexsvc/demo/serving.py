"""Demo of a serving engine that lends: a job learns without what it leaves, then with it.

The engine serves traffic all the time (`traffic.py`), by vLLM's OpenAI application. While it lends,
the job has its guest as an instance beside its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from plexsvc.demo.acts import Acts
from plexsvc.demo.model import VOCAB_SIZE
from plexsvc.demo.report import Check, Outcome, Run
from plexsvc.demo.stage import FEW_SEQS, STATE, open_stage, plexctl, stop
from plexsvc.demo.traffic import Traffic
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.serving.control import ask

NAME: Final = "chat"
REQUESTS_PER_S: Final = 3.0
SLO_TTFT_S: Final = 1.0
SLO_TPOT_S: Final = 0.25
KV_BYTES: Final = 128 << 20
LOOK_S: Final = 1.0
LATENCIES: Final = ("ttft", "tpot")
MIN_HARVEST: Final = 1000
"""Tokens that the guest makes at least."""
MIN_REQUESTS: Final = 30
"""Requests behind each percentile at least."""


def play(acts: Acts) -> Outcome:
    """Play both acts.

    Raises:
        PlexError: when the cluster, the engine or a job fails.
    """
    harvested: list[tuple[int, float]] = []
    with open_stage(acts.out_dir, device_bytes=acts.device_bytes, max_num_seqs=FEW_SEQS) as stage:
        acts.warm_up(stage)
        acts.show.act("starting a serving engine that lends")
        with (
            _served(acts) as address,
            Traffic(
                address, name=NAME, rate=REQUESTS_PER_S, seed=0, vocab_size=VOCAB_SIZE
            ) as traffic,
        ):
            acts.show.act("the job without what the engine leaves")
            without = acts.play(stage, acts.preset.tasks, label="without")
            acts.show.act("the job with what the engine lends")
            with _noted(acts.out_dir, harvested):
                runs = acts.play(stage, acts.preset.tasks, label="lent", serving=1)
            report = _report(acts.out_dir)
        spans = stage.spans()
    figures = {**report, "sent": traffic.sent, "answered": traffic.answered}
    return Outcome(
        without=without,
        runs=runs,
        spans=spans,
        figures=figures,
        lines=[_line(report, name) for name in LATENCIES],
        checks=checks(figures, runs),
        curves={"tokens that the guest made": harvested},
    )


@contextmanager
def _served(acts: Acts) -> Iterator[str]:
    """Serve the fresh model, and lend to jobs of the warm one; yield the application's address."""
    state, log_path = acts.out_dir / STATE, acts.out_dir / "logs" / "serve.log"
    command = plexctl("serve", str(acts.fresh), "--name", NAME, "--port", "0", "--json")
    command += ("--kv-bytes", str(KV_BYTES), "--lend", "--lend-model", str(acts.warm))
    command += ("--slo-ttft", str(SLO_TTFT_S), "--slo-tpot", str(SLO_TPOT_S))
    command += ("--cluster", str(state), "--state-dir", str(state))
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        if not told:
            text = f"the serving engine did not start; its log is {log_path}"
            raise PlexError(ErrorCode.UNAVAILABLE, text)
        yield str(json.loads(told)["address"])
    finally:
        stop(process)
        process.stdout.close()


@contextmanager
def _noted(out_dir: Path, points: list[tuple[int, float]]) -> Iterator[None]:
    """Note when the guest has made how many tokens, as long as the block runs."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            tokens = int(_report(out_dir)["harvested_tokens"])
            points.append((time.time_ns() // 1000, tokens))

    looking = threading.Thread(target=look, name="report")
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _report(out_dir: Path) -> dict[str, Any]:
    return asyncio.run(ask(out_dir / STATE / "serving" / f"{NAME}.sock", "report"))


def _line(report: Mapping[str, Any], name: str) -> str:
    alone, lending = report["alone"], report["lending"]
    return (
        f"{name.upper()}, 99th percentile: {alone[name].get('p99', 0.0):.0f} ms of "
        f"{alone['requests']} requests without the guest, {lending[name].get('p99', 0.0):.0f} ms "
        f"of {lending['requests']} beside it; {alone[name]['objective']:g} ms is the objective"
    )


def checks(figures: Mapping[str, Any], runs: Sequence[Run]) -> list[Check]:
    """Return what must hold of a job that learns in what an engine leaves, passed or not."""
    alone, lending = figures["alone"], figures["lending"]
    enough = min(alone["requests"], lending["requests"]) >= MIN_REQUESTS
    sent, answered, tokens = figures["sent"], figures["answered"], figures["harvested_tokens"]
    lost = round(sum(step.instances_lost for run in runs for step in run.record.steps))
    return [
        *(
            Check(  # judged where the engine alone keeps to its objective
                f"{name.upper()} of those served",
                enough and (lending[name]["is_kept"] or not alone[name]["is_kept"]),
                f"{_line(figures, name)}, and {MIN_REQUESTS} requests of each are due",
            )
            for name in LATENCIES
        ),
        Check(
            "traffic",
            answered == sent > 0,
            f"{answered} of {sent} requests were answered; all must be",
        ),
        Check(
            "harvest",
            tokens >= MIN_HARVEST,
            f"the guest made {tokens} tokens in {figures['harvested_share_of_idle']:.0%} of the "
            f"engine's idle time; at least {MIN_HARVEST} are due",
        ),
        Check(
            "lost instances",
            lost == 0,
            f"{lost} instances were lost under samples; none must be",
        ),
    ]

"""Instances that a generate leaves early, on against off, on real engines with steps of a set time.

    python -m benchmarks.cuts [--step-ms 40] [--sample-ms 1] [--rounds 2]

Two cores cannot run four engines at the speed of four devices. So a vLLM engine of the tiny model
(float32, CPU) sleeps after each of its steps until `--step-ms`, and `--sample-ms` for each sample
that runs, have passed; all else is the service as it is. Each setting has a service of its own with
4 engines, and generates the same 48 prompts with the same draws: once to be warm, then `--rounds`
times. Answers end by a draw, so their lengths are spread like waiting times.

Prints one JSON line: by setting, time and instance-seconds (`instance_s`) of a generate, the mean
of the rounds, and both against off. Bounds: the longest answer alone on an instance for the time,
all steps with full batches for the instance-seconds. Fails when tokens differ between settings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks import padded_engines
from benchmarks.service import report
from tests.rigs.live_cluster import ROLLOUT, SHARES_ALL, start_cluster
from tests.rigs.tiny_models import make_qwen3

INSTANCES: Final = 4
BATCH: Final = 32
PROMPTS: Final = [[2 + (index + at) % 40 for at in range(8)] for index in range(48)]
MOST: Final = 200
SETTINGS: Final = {
    "off": "",
    "cut": "cuts_at = 0.7\n",
}


def measure(
    home: Path, model: Path, setting: str, *, rounds: int
) -> tuple[float, float, list[list[int]]]:
    """Return seconds and instance-seconds of a generate, and the tokens of each sample."""
    home.mkdir()
    nodes = {"node-a": [ROLLOUT] * INSTANCES}
    scheduler = f"{SHARES_ALL}max_num_seqs = {BATCH}\n[rollout]\n{SETTINGS[setting]}"
    took_s, held_s, tokens = [], [], []
    with (
        start_cluster(home, nodes=nodes, scheduler=scheduler) as cluster,
        cluster.connect() as connection,
        connection.job("cuts") as job,
    ):
        rollout = job.deploy(
            "rollout", model=model, backend="vllm", max_model_len=256, instances=INSTANCES
        )
        for _ in range(1 + rounds):
            began_s = time.monotonic()
            samples = rollout.generate(
                PROMPTS, max_tokens=MOST, seed=7, ignore_eos=True, stop_token_ids=[2, 3]
            )
            took_s.append(time.monotonic() - began_s)
            held_s.append(samples.metrics["instance_s"])
            tokens = [list(sample.tokens) for sample in samples]
    return fmean(took_s[1:]), fmean(held_s[1:]), tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--sample-ms", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    found: dict[str, tuple[float, float, list[list[int]]]] = {}
    with tempfile.TemporaryDirectory(prefix="pxt") as place:
        padded_engines.install(Path(place), step_ms=options.step_ms, sample_ms=options.sample_ms)
        model = make_qwen3(Path(place) / "model", seed=0)
        for number, setting in enumerate(SETTINGS):
            home = Path(place) / str(number)
            found[setting] = measure(home, model, setting, rounds=options.rounds)
    off_s, off_held_s, tokens = found["off"]
    lengths = sorted(len(sample) for sample in tokens)
    step_s, sample_s = options.step_ms / 1000, options.sample_ms / 1000
    report(
        lengths={"median": lengths[len(lengths) // 2], "most": lengths[-1], "all": sum(lengths)},
        time_s={name: round(one[0], 2) for name, one in found.items()},
        instance_s={name: round(one[1], 2) for name, one in found.items()},
        speed={name: round(off_s / one[0], 3) for name, one in found.items()},
        cost={name: round(one[1] / off_held_s, 3) for name, one in found.items()},
        bound_s=round(lengths[-1] * (step_s + sample_s), 2),
        bound_instance_s=round(sum(lengths) * (step_s / BATCH + sample_s), 2),
        differ=sum(one[2] != tokens for one in found.values()),
        load=round(os.getloadavg()[0], 1),
    )
    if any(one[2] != tokens for one in found.values()):
        sys.exit("tokens differ between settings")


if __name__ == "__main__":
    main()

"""Throughput beside n spot instances on real engines whose steps take a set time.

    python -m benchmarks.spot_throughput [--most 4] [--step-ms 100]

Two cores cannot run eight engines at the speed of eight devices. So a vLLM engine of the tiny model
(float32, CPU) sleeps after each of its steps until `--step-ms` have passed, as a device that
decodes a batch would keep it waiting; all else is the service as it is: scheduler, manager,
processes, gRPC, spot pool, dealing and balance. A job with 4 dedicated engines of 16 samples a step
generates 512 samples of 32 tokens, alone and beside 1 to n spot instances. The bound is (n + 4) /
4. Also said: the longest step that was not padded, which must stay below the set time. Prints one
JSON line; fails when a throughput is more than 15 % below its bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks import padded_engines
from benchmarks.service import report
from tests.rigs.live_cluster import ROLLOUT, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.spot_cluster import SPOT, change_instance, instances
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until

DEDICATED: Final = 4
BATCH: Final = 16
PROMPTS: Final = [[2 + (index + at) % 40 for at in range(8)] for index in range(64)]
OPTIONS: Final = plex.SamplingOptions(n=8, max_tokens=32, temperature=1.0, seed=7, ignore_eos=True)
WITHIN: Final = 0.85


def measure(cluster: LiveCluster, rollout: plex.Rollout, *, spot: int) -> float:
    """Return tokens a second with so many spot instances."""
    wait_until(
        lambda: (
            sum((v["kind"], v.get("phase")) == ("spot", "serving") for v in instances(cluster))
            == spot
        ),
        what=f"{spot} spot instances serve",
        timeout_s=120,
    )
    started_s = time.monotonic()
    samples = rollout.generate(PROMPTS, **OPTIONS)
    return samples.num_tokens / (time.monotonic() - started_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=100.0)
    options = parser.parse_args()
    nodes = {"node-a": [ROLLOUT] * DEDICATED, "spot-a": [SPOT] * options.most}
    with tempfile.TemporaryDirectory(prefix="pxt") as place:
        home = Path(place)
        padded_engines.install(home, step_ms=options.step_ms)
        model = make_qwen3(home / "model", seed=0)
        found: dict[int, float] = {}
        with (
            start_cluster(
                home, nodes=nodes, scheduler=f"{SHARES_ALL}max_num_seqs = {BATCH}\n"
            ) as cluster,
            cluster.connect() as connection,
            connection.job("throughput") as job,
        ):
            rollout = job.deploy(
                "rollout",
                model=model,
                backend="vllm",
                max_model_len=128,
                instances=plex.Elastic(dedicated=DEDICATED, spot=(0, options.most)),
            )
            found[options.most] = measure(cluster, rollout, spot=options.most)
            for left in reversed(range(options.most)):
                change_instance(cluster, "drain", f"spot-a:{left}")
                found[left] = measure(cluster, rollout, spot=left)
            longest_s = padded_engines.longest_s(cluster.state_dir)
    ratios = {n: found[n] / found[0] for n in range(1, options.most + 1)}
    bounds = {n: (n + DEDICATED) / DEDICATED for n in ratios}
    report(
        step_ms=options.step_ms,
        longest_step_ms=round(1000 * longest_s, 1),
        tokens_per_s={n: round(found[n], 1) for n in sorted(found)},
        ratio={n: round(ratio, 3) for n, ratio in ratios.items()},
        bound=bounds,
        within={n: round(ratios[n] / bounds[n], 3) for n in ratios},
        cores=os.cpu_count(),
    )
    if any(ratios[n] < WITHIN * bounds[n] for n in ratios):
        sys.exit("a throughput is more than 15 % below its bound")


if __name__ == "__main__":
    main()

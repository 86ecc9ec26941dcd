"""What a seeding window brings: a job on a training device and one more, with and without it.

    python -m benchmarks.seeding_window [--rounds 12] [--step-ms 30] [--sequences 160]

A step syncs, generates 96 samples of 32 tokens in micro-batches, trains each as it comes, and
steps. Megatron, vLLM and the service are real; a step of an engine, of 16 samples, takes
`--step-ms`, as on a device that leaves the processor to others; a micro-batch that is trained has
`--sequences`. Settings, each a job of its own:
`where_it_trains` generates on the training device alone (`plex.Elastic(reserved=True)`), `beside`
on the other device alone, `window` on both, on the training device for a window only. The bound of
`window` is half of what a step of `where_it_trains` takes: its work on two devices without a wait.
The first quarter of the rounds, in which the window is learned, does not count. Prints one JSON
line; fails when a token of a step differs between the settings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks import padded_engines
from benchmarks.service import report
from tests.rigs.live_cluster import MIB, ROLLOUT, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import fixed_batch

BATCH: Final = 16
PARTS: Final = 8
PROMPTS: Final = [[2 + (index + at) % 40 for at in range(8)] for index in range(24)]
OPTIONS: Final = plex.SamplingOptions(n=4, max_tokens=32, temperature=1.0, seed=7, ignore_eos=True)
SETTINGS: Final[dict[str, int | plex.Elastic]] = {
    "where_it_trains": plex.Elastic(reserved=True),
    "beside": 1,
    "window": plex.Elastic(reserved=True, dedicated=1),
}
TRAIN: Final = f'{{ kind = "train", bytes_total = {1024 * MIB} }}'

Tokens = dict[tuple[int, int], list[int]]


def learn(
    job: plex.Job, instances: int | plex.Elastic, *, model: Path, rounds: int, sequences: int
) -> tuple[list[float], list[Tokens]]:
    """Return how long each step took, and its tokens."""
    actor, rollout = job.deploy_all(
        policy := plex.Declared(
            "actor", model=model, backend="megatron", optimizer=plex.AdamW(lr=1e-4), seed=1
        ),
        plex.Declared(
            "rollout", model=policy, backend="vllm", max_model_len=128, instances=instances
        ),
    )
    each, took_s, found = len(PROMPTS) * OPTIONS["n"] // PARTS, [], []
    for number in range(rounds):
        began_s, tokens, trained = time.perf_counter(), {}, []
        rollout.sync(actor)
        for batch in rollout.generate.micro_batches(PROMPTS, min_samples=each, **OPTIONS):
            tokens |= {(one.prompt_index, one.sample_index): one.tokens for one in batch}
            while len(tokens) >= each * (len(trained) + 1):  # the same batches, whatever comes
                given = fixed_batch(PARTS * number + len(trained), sequences=sequences, longest=256)
                trained.append(actor.forward_backward.submit(given, loss="ppo"))
        actor.step()
        took_s.append(time.perf_counter() - began_s)
        found.append(tokens)
    return took_s, found


def windows_s(cluster: LiveCluster, job_id: str) -> list[float]:
    """Return how long each window of a job had the training device."""
    spans = [s for s in cluster.timeline() if s.job_id == job_id and s.kind == "seed"]
    return [(s.end_us - s.start_us) / 1e6 for s in spans]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--sequences", type=int, default=160)
    options = parser.parse_args()
    times: dict[str, float] = {}
    tokens: dict[str, list[Tokens]] = {}
    with tempfile.TemporaryDirectory(prefix="pxw") as place:
        home = Path(place)
        padded_engines.install(home, step_ms=options.step_ms)
        model = make_qwen3(home / "model", seed=0)
        scheduler = f"{SHARES_ALL}max_num_seqs = {BATCH}\n"
        nodes = {"node-a": [TRAIN, ROLLOUT]}
        extra = "rollout = { balance_us = 100_000 }\n"
        with (
            start_cluster(home, nodes=nodes, scheduler=scheduler, extra=extra) as cluster,
            cluster.connect() as connection,
        ):
            for name, instances in SETTINGS.items():
                with connection.job(name) as job:
                    took_s, tokens[name] = learn(
                        job,
                        instances,
                        model=model,
                        rounds=options.rounds,
                        sequences=options.sequences,
                    )
                    windows = windows_s(cluster, job.job_id)
                times[name] = statistics.median(took_s[options.rounds // 4 :])
                print(name, [round(s, 2) for s in took_s], file=sys.stderr, flush=True)
            longest_s = padded_engines.longest_s(cluster.state_dir)
    report(
        step_s={name: round(took, 3) for name, took in times.items()},
        window_s=[round(s, 2) for s in windows],
        against_where_it_trains=round(times["where_it_trains"] / times["window"], 3),
        bound=2.0,
        against_beside=round(times["beside"] / times["window"], 3),
        step_ms=options.step_ms,
        longest_step_ms=round(1000 * longest_s, 1),
        load=os.getloadavg()[0],
    )
    if any(found != tokens["beside"] for found in tokens.values()):
        sys.exit("a token differs between the settings")


if __name__ == "__main__":
    main()

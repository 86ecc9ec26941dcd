"""Two synchronous jobs on one rollout device and one training device, against back to back.

    python -m benchmarks.two_pools [--rounds 12] [--phase-s 1.0] [--step-ms 0]

A round of a job is a training step, a sync, and a generate of about the same length: the sizes of
both are fitted to `--phase-s` first. Each job runs alone on the two devices, one after the other;
then both run at once, and share each device in time: while one trains, the other's engine
generates, and engines sleep and wake in between. Megatron, vLLM and the whole service are real; the
training device holds one job's state, the rollout device one engine. With `--step-ms` a step of an
engine takes so long at least, as a device's does that leaves the processor to others. `ratio` is
the time of both jobs alone over their time together, `bound` what it would be if no phase ever
waited, `bound_of_rounds` that of so few rounds, whose first and last phase have no other beside
them, and `bound_of_phases` that of phases as long as those measured alone.
Prints one JSON line; fails when a token differs from that of the job alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks import padded_engines, service
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import fixed_batch

MIB: Final = 1 << 20
CONFIG: Final = f"""
[scheduler]
policy = "plex_crowded"
max_slowdown_ppm = 100_000_000
[[nodes]]
node_id = "node-a"
host_bytes = {2048 * MIB}
devices = [
    {{ kind = "train", bytes_total = {2 * MIB} }},
    {{ kind = "rollout", bytes_total = {1024 * MIB} }},
]
"""
PROMPTS: Final = [[3, 4, 12, 5, 16], [7, 8, 9]]
MAX_MODEL_LEN: Final = 512
WANTED: Final = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What makes both phases of a round as long as asked."""

    sequences: int = 64
    tokens: int = 200


@dataclass(slots=True, kw_only=True)
class Run:
    """One job, from when its deployments are ready."""

    name: str
    began_s: float = 0.0
    ended_s: float = 0.0
    train_s: list[float] = field(default_factory=list)
    generate_s: list[float] = field(default_factory=list)
    tokens: list[list[list[int]]] = field(default_factory=list)


def timed(call: Callable[[], object], into: list[float]) -> None:
    """Add how long a call takes."""
    began_s = time.perf_counter()
    call()
    into.append(time.perf_counter() - began_s)


def learn(
    cluster: plex.Cluster,
    run: Run,
    sizes: Sizes,
    *,
    model: Path,
    rounds: int,
    ready: threading.Barrier,
) -> None:
    """Run one job's rounds, once all are ready."""
    batch = fixed_batch(len(run.name), sequences=sizes.sequences, longest=128)
    options = plex.SamplingOptions(
        n=4, max_tokens=sizes.tokens, temperature=1.0, seed=7, ignore_eos=True
    )
    with cluster.job(run.name) as job:
        actor = job.deploy("actor", model=model, backend="megatron", optimizer=plex.AdamW(lr=1e-4))
        shared = plex.Elastic(shared=True)
        rollout = job.deploy(
            "rollout", model=actor, backend="vllm", instances=shared, max_model_len=MAX_MODEL_LEN
        )

        def train() -> None:
            actor.forward_backward(batch, loss="ppo")
            actor.step()

        def generate() -> None:
            rollout.sync(actor)
            samples = rollout.generate(PROMPTS, **options)
            ordered = sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
            run.tokens.append([one.tokens for one in ordered])

        ready.wait()
        run.began_s = time.perf_counter()
        for _ in range(rounds):
            timed(train, run.train_s)
            timed(generate, run.generate_s)
        run.ended_s = time.perf_counter()
        ready.wait()


def alone(cluster: plex.Cluster, name: str, sizes: Sizes, *, model: Path, rounds: int) -> Run:
    """Return a job that has both devices to itself."""
    run = Run(name=name)
    learn(cluster, run, sizes, model=model, rounds=rounds, ready=threading.Barrier(1))
    return run


def together(
    cluster: plex.Cluster, names: list[str], sizes: Sizes, *, model: Path, rounds: int
) -> list[Run]:
    """Return jobs that share both devices."""
    runs, ready = [Run(name=name) for name in names], threading.Barrier(len(names))
    threads = [
        threading.Thread(
            target=learn,
            args=(cluster, run, sizes),
            kwargs={"model": model, "rounds": rounds, "ready": ready},
            daemon=True,
        )
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def fit(cluster: plex.Cluster, phase_s: float, *, model: Path) -> Sizes:
    """Return sizes whose phases take about `phase_s`."""
    sizes = Sizes()
    for name in ("first", "second"):
        run = alone(cluster, name, sizes, model=model, rounds=6)
        sequences = sizes.sequences * phase_s / statistics.median(run.train_s)
        tokens = sizes.tokens * phase_s / statistics.median(run.generate_s)
        sizes = Sizes(sequences=round(sequences), tokens=min(MAX_MODEL_LEN - 16, round(tokens)))
    return sizes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--phase-s", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    options = parser.parse_args()
    rounds = options.rounds
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        if options.step_ms:
            padded_engines.install(Path(place), step_ms=options.step_ms)
        cluster = stack.enter_context(service.running(CONFIG))
        model = make_qwen3(Path(place) / "model", seed=0)
        sizes = fit(cluster, options.phase_s, model=model)
        names = ["a", "bb"]
        each = [alone(cluster, name, sizes, model=model, rounds=rounds) for name in names]
        both = together(cluster, names, sizes, model=model, rounds=rounds)
    differing = sum(a.tokens != b.tokens for a, b in zip(each, both, strict=True))
    apart_s = sum(run.ended_s - run.began_s for run in each)
    shared_s = max(run.ended_s for run in both) - min(run.began_s for run in both)
    phases_s = [sum(sum(run.train_s) for run in each), sum(sum(run.generate_s) for run in each)]
    least_s = max(phases_s) + min(phases_s) / (2 * rounds)
    service.report(
        benchmark="two_pools",
        rounds=rounds,
        train_s=round(phases_s[0] / (2 * rounds), 3),
        generate_s=round(phases_s[1] / (2 * rounds), 3),
        back_to_back_s=round(apart_s, 2),
        together_s=round(shared_s, 2),
        ratio=round(apart_s / shared_s, 3),
        bound=2,
        bound_of_rounds=round(4 * rounds / (2 * rounds + 1), 3),
        bound_of_phases=round(apart_s / least_s, 3),
        wanted=WANTED,
        step_ms=options.step_ms,
        jobs_with_other_tokens=differing,
        load=os.getloadavg()[0],
    )
    if differing:
        sys.exit("a job's tokens differ from those that it got alone")


if __name__ == "__main__":
    main()

"""GRPO on one verifiable task: a controller that holds no device and imports only plexclient.

Run it with `plexctl submit examples/grpo_arithmetic.py --task count_bits --model DIR`.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from recorder import Recorder
from verifiable_tasks import MAX_ANSWER_TOKENS, TASKS, Problem

import plexclient as plex

MAX_GAP: Final = 1e-3
"""Largest logprob gap of sampler and actor: fp32 explains less, other weights more."""
HELD_OUT_SAMPLES: Final = 4
"""Samples for each held-out prompt, at temperature 1 as in training."""


def train(job: plex.Job, options: argparse.Namespace, *, recorder: Recorder) -> None:
    """Run the loop: sample, score, learn, deliver the new weights."""
    task = TASKS[options.task]
    actor = job.deploy(
        "actor",
        model=options.model,
        backend="megatron",
        optimizer=plex.AdamW(lr=options.lr, beta2=0.95, weight_decay=0.0, clip_grad_norm=1.0),
        max_logprob_gap=MAX_GAP,
    )
    rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
    rollout.sync(actor)
    before = accuracy(rollout, task.held_out())
    recorder.write("held_out", when="before", accuracy=before)
    problems = task.problems(options.seed)
    for step in range(options.steps):
        started = time.monotonic()
        chosen = list(islice(problems, options.prompts))
        samples = sample(rollout, chosen, n=options.group, seed=options.seed * 10**6 + step)
        wait_s = use_tool(options.wait_ms)
        rewards = score(samples, chosen)
        advantages = plex.grpo_advantages(rewards, group=options.group)
        batch = plex.Batch.from_samples(samples, advantages=advantages / samples.num_tokens)
        training = actor.forward_backward.submit(batch, loss="ppo", clip=0.2)
        updating = actor.step.submit()
        rollout.sync(actor)
        loss, update = training.result(), updating.result()
        reward = float(np.mean(rewards))
        job.report(step=step + 1, reward=reward)
        recorder.write(
            "step",
            step=step,
            reward=reward,
            device_s=(loss.times.run_us + update.times.run_us) / 1e6,
            gap_mean=loss["logprob_gap_mean"],
            gap_max=loss["logprob_gap_max"],
            wait_s=wait_s,
            wall_s=time.monotonic() - started,
        )
    recorder.write("held_out", when="after", accuracy=accuracy(rollout, task.held_out()))
    recorder.write("end", cpu_s=time.process_time())


def sample(
    rollout: plex.Rollout, problems: Sequence[Problem], *, n: int, seed: int
) -> plex.Samples:
    """Return `n` answers to each problem, as text, at temperature 1."""
    prompts = [problem.prompt for problem in problems]
    return rollout.generate(prompts, n=n, max_tokens=MAX_ANSWER_TOKENS, temperature=1.0, seed=seed)


def score(samples: plex.Samples, problems: Sequence[Problem]) -> list[float]:
    """Return 1 for each sample whose whole answer is right, else 0."""
    return [problems[sample.prompt_index].score(sample.text or "") for sample in samples]


def accuracy(rollout: plex.Rollout, problems: Sequence[Problem]) -> float:
    """Return the share of sampled answers that are right, always with the same seed."""
    return float(np.mean(score(sample(rollout, problems, n=HELD_OUT_SAMPLES, seed=0), problems)))


def use_tool(wait_ms: float) -> float:
    """Wait for an external tool, a process that takes `wait_ms`; return the seconds it took."""
    started = time.monotonic()
    if wait_ms > 0:
        subprocess.run(["sleep", f"{wait_ms / 1000:.3f}"], check=True)
    return time.monotonic() - started


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="GRPO on one verifiable task.")
    parser.add_argument("--task", choices=sorted(TASKS), default="count_bits")
    parser.add_argument("--model", required=True, help="Hugging Face directory to start from")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--prompts", type=int, default=16, help="prompts a step")
    parser.add_argument("--group", type=int, default=8, help="answers a prompt")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wait-ms", type=float, default=0.0, help="an external tool's time a step")
    parser.add_argument("--out", type=Path, help="JSON-lines file of what happened")
    return parser.parse_args(argv)


def main() -> None:
    """Run the job of the command line."""
    options = parse()
    recorder = Recorder(options.out)
    with plex.connect() as cluster, cluster.job(f"grpo-{options.task}") as job:
        train(job, options, recorder=recorder)


if __name__ == "__main__":
    main()

"""GRPO on one verifiable task: a controller that holds no device and imports only plexclient.

Run it with `plexctl submit examples/grpo_arithmetic.py --task count_bits --model DIR`.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from hostile_programs import PROGRAMS
from recorder import Recorder
from verifiable_tasks import TASKS, Problem, Task

import plexclient as plex

MAX_GAP: Final = 1e-3
"""Largest logprob gap of sampler and actor: fp32 explains less, other weights more."""
MAX_PROGRAM_S: Final = 1.0
"""Seconds that a program may take for all its tests."""
HOSTILE_EVERY: Final = 10
"""Steps from one lot of hostile programs to the next."""
ENDS: Final = ("stop", "length")
"""How a complete sample finishes."""
HELD_OUT_SAMPLES: Final = 4
"""Samples for each held-out prompt, at temperature 1 as in training; of programs, one."""


def train(job: plex.Job, options: argparse.Namespace, *, recorder: Recorder) -> None:
    """Run the loop: sample, score, learn, deliver the new weights."""
    task = TASKS[options.task]
    policy = plex.Declared(
        "actor",
        model=options.model,
        backend="megatron",
        optimizer=plex.AdamW(lr=options.lr, beta2=0.95, weight_decay=0.0, clip_grad_norm=1.0),
        max_logprob_gap=MAX_GAP,
    )
    engine = plex.Declared(
        "rollout",
        model=policy,
        backend="vllm",
        max_model_len=64,
        instances=plex.Elastic(spot=(0, options.spot), serving=(0, options.serving)),
    )
    actor, rollout = job.deploy_all(policy, engine)
    rollout.sync(actor)
    before = accuracy(rollout, task)
    recorder.write("held_out", when="before", accuracy=before)
    problems = task.problems(options.seed)
    hostile = Hostile(job, task)
    for step in range(options.steps):
        started = time.monotonic()
        if step % HOSTILE_EVERY == 0:
            hostile.send()
        chosen = list(islice(problems, options.prompts))
        seed = options.seed * 10**6 + step
        samples, rewards = attempt(rollout, task, chosen, n=options.group, seed=seed)
        wait_s = use_tool(options.wait_ms)
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
            ended_us=time.time_ns() // 1000,
            tokens=samples.num_tokens,
            complete=sum(sample.finish_reason in ENDS for sample in samples),
            instances_lost=samples.metrics["instances_lost"],
        )
    recorder.write("held_out", when="after", accuracy=accuracy(rollout, task))
    recorder.write("hostile", **hostile.result())
    recorder.write("end", cpu_s=time.process_time())


def attempt(
    rollout: plex.Rollout, task: Task, problems: Sequence[Problem], *, n: int, seed: int
) -> tuple[plex.Samples, list[float]]:
    """Return `n` answers to each problem at temperature 1, and 1 for each right one, else 0.

    What is a program runs in the sandbox of the reward service as soon as it is written, while
    others are being generated.
    """
    prompts = [problem.prompt for problem in problems]
    options: plex.SamplingOptions = {
        "n": n,
        "max_tokens": task.max_tokens,
        "temperature": 1.0,
        "seed": seed,
    }
    if task.program:
        samples = rollout.generate(
            prompts,
            score=task.program,
            references=[problem.tests for problem in problems],
            settings={"partial": False, "seconds": MAX_PROGRAM_S},
            **options,
        )
        assert samples.scores is not None, "they were asked for"
        return samples, [max(0.0, value) for value in samples.scores.filled(0.0)]
    samples = rollout.generate(prompts, **options)
    return samples, [_score(sample, problems[sample.prompt_index]) for sample in samples]


def _score(sample: plex.Sample, problem: Problem) -> float:
    assert problem.score is not None, "the task names no program"
    return problem.score(sample.text or "")


def accuracy(rollout: plex.Rollout, task: Task) -> float:
    """Return the share of answers to held-out problems that are right, always of the same seed."""
    n = 1 if task.program else HELD_OUT_SAMPLES
    _, rewards = attempt(rollout, task, task.held_out(), n=n, seed=0)
    return float(np.mean(rewards))


class Hostile:
    """Programs that attack where they run; each must fail, and cost the job nothing."""

    def __init__(self, job: plex.Job, task: Task) -> None:
        self._job = job
        self._is_on = bool(task.program)
        self._scores: list[Future[plex.Scores]] = []

    def send(self) -> None:
        """Have them scored beside the job's own samples."""
        if self._is_on:
            tests = [[{"call": "answer()", "equals": 2}]] * len(PROGRAMS)
            self._scores.append(
                self._job.score.submit(
                    "code_python", list(PROGRAMS.values()), references=tests, seconds=MAX_PROGRAM_S
                )
            )

    def result(self) -> dict[str, float]:
        """Return how many were sent, and how many of them have failed."""
        found = [score for scores in self._scores for score in scores.result()]
        return {"sent": len(found), "failed": sum(score.value <= 0 for score in found)}


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
    parser.add_argument("--spot", type=int, default=0, help="spot instances at most")
    parser.add_argument("--serving", type=int, default=0, help="lent engines at most")
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

"""Supervised steps through the service, until the model answers some problems of each task.

Run it with `plexctl submit examples/warm_up.py --model DIR --export DIR`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from grpo_arithmetic import accuracy
from recorder import Recorder
from verifiable_tasks import TASKS, demonstrations

import plexclient as plex

RAMP_STEPS: Final = 20
"""Steps in which the learning rate grows to its full value."""
KEPT_SHARE: Final = 0.1
"""Share of a batch for the tasks that have reached the goal, so that they are not forgotten."""


def shares(accuracies: Mapping[str, float], *, goal: float) -> dict[str, float]:
    """Return each task's share of a batch: most of it for those that are below the goal.

    >>> shares({"a": 0.5, "b": 0.1}, goal=0.3)
    {'a': 0.1, 'b': 0.9}
    """
    behind = [name for name, found in accuracies.items() if found < goal]
    ahead = [name for name in accuracies if name not in behind]
    if not behind or not ahead:
        return dict.fromkeys(accuracies, 1 / len(accuracies))
    return {
        name: (1 - KEPT_SHARE) / len(behind) if name in behind else KEPT_SHARE / len(ahead)
        for name in accuracies
    }


def next_batch(
    sources: Mapping[str, Iterator[tuple[str, str]]],
    *,
    parts: Mapping[str, float],
    sequences: int,
    tokenizer: plex.Tokenizer,
) -> plex.Batch:
    """Return a supervised batch; weights make the loss a mean over the answers' tokens."""
    pairs = [
        pair
        for name, source in sources.items()
        for pair in islice(source, round(parts[name] * sequences))
    ]
    end = tokenizer.backend.token_to_id("<eos>")
    prompts = [tokenizer.encode(prompt) for prompt, _ in pairs]
    answers = [[*tokenizer.encode(answer), end] for _, answer in pairs]
    batch = plex.Batch.from_sequences(
        [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)],
        prompt_lengths=[len(prompt) for prompt in prompts],
    )
    assert batch.weights is not None, "made by from_sequences"
    return batch.replace(weights=batch.weights / batch.weights.sum())


def warm_up(job: plex.Job, options: argparse.Namespace, *, recorder: Recorder) -> None:
    """Train until every task reaches the goal, or for the most steps; then export.

    Raises:
        SystemExit: with the accuracies when the goal was not reached.
    """
    policy = plex.Declared(
        "actor",
        model=options.model,
        backend="megatron",
        optimizer=plex.AdamW(lr=options.lr, beta2=0.95, weight_decay=0.0, clip_grad_norm=1.0),
    )
    engine = plex.Declared("rollout", model=policy, backend="vllm", max_model_len=64)
    actor, rollout = job.deploy_all(policy, engine)
    sources = {
        name: demonstrations(TASKS[name], seed=options.seed, wrong_share=options.wrong_share)
        for name in options.tasks
    }
    parts = shares(dict.fromkeys(options.tasks, 0.0), goal=options.goal)
    found: dict[str, float] = {}
    for step in range(1, options.max_steps + 1):
        batch = next_batch(
            sources, parts=parts, sequences=options.sequences, tokenizer=actor.tokenizer
        )
        training = actor.forward_backward.submit(batch, loss="cross_entropy")
        update = actor.step.submit(lr=options.lr * min(1.0, step / RAMP_STEPS))
        if step >= options.min_steps and step % options.every == 0:
            rollout.sync(actor)
            found = {name: accuracy(rollout, TASKS[name]) for name in options.tasks}
            parts = shares(found, goal=options.goal)
        loss = training.result()["loss"]
        update.result()
        job.report(step=step, reward=min(found.values(), default=0.0))
        recorder.write("step", step=step, loss=loss, accuracies=found)
        if found and min(found.values()) >= options.goal:
            break
    actor.export(options.export)
    recorder.write("end", cpu_s=time.process_time())
    if not found or min(found.values()) < options.goal:
        raise SystemExit(f"warm-up ended at {found}, below the goal of {options.goal}")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Supervised warm-up of a character model.")
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), required=True)
    parser.add_argument("--model", required=True, help="Hugging Face directory to start from")
    parser.add_argument("--export", required=True, help="Hugging Face directory to write")
    parser.add_argument("--goal", type=float, default=0.22, help="accuracy to stop at")
    parser.add_argument("--wrong-share", type=float, default=0.3, help="wrong demonstrations")
    parser.add_argument("--sequences", type=int, default=192, help="sequences a step")
    parser.add_argument("--min-steps", type=int, default=30)
    parser.add_argument("--max-steps", type=int, default=250)
    parser.add_argument("--every", type=int, default=10, help="steps from one test to the next")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON-lines file of what happened")
    return parser.parse_args(argv)


def main() -> None:
    """Run the job of the command line."""
    options = parse()
    recorder = Recorder(options.out)
    with plex.connect() as cluster, cluster.job("warm-up") as job:
        warm_up(job, options, recorder=recorder)


if __name__ == "__main__":
    main()

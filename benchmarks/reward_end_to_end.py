"""Step time of two jobs that write code: scored by the pool, and by each controller in turn.

`python -m benchmarks.reward_end_to_end` prints one JSON line. It starts a cluster as the demo does
and runs two GRPO jobs at once, twice: with scores of the reward service while others are being
generated, and with controllers that run the same program in the same sandbox themselves, one sample
after the other, when all are generated. `--wait-ms` has each program wait, as those do that
read files or start others. `--cases` has it tested in so many cases, each by a Python that starts
anew and may import packages. The file is also the controller of both kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TASKS: Final = ("write_polynomial", "write_choice")
Attempt = Callable[..., tuple[Any, list[float]]]
SKIPPED_STEPS: Final = 2
"""First steps, in which caches are cold."""


def measure(
    directory: Path, *, model: Path | None, steps: int, wait_ms: int, cases: int
) -> dict[str, Any]:
    """Return the figures."""
    from plexsvc.demo.share import pool_figures, pool_point
    from plexsvc.demo.spans import Window
    from plexsvc.demo.stage import open_stage
    from plexsvc.weights.random_model import device_bytes_for_one, make_model

    fresh = directory / "models" / "fresh"
    num_parameters = make_model(fresh, seed=0)
    seconds: dict[str, float] = {}
    pools: dict[str, Any] = {}
    with open_stage(
        directory,
        device_bytes=3 * device_bytes_for_one(num_parameters),
    ) as stage:
        if model is not None:
            fresh = shutil.copytree(model, directory / "models" / "given")
        for way in ("pool", "in_turn"):
            outs = [directory / f"{task}-{way}.jsonl" for task in TASKS]
            job_ids = [
                stage.submit(
                    Path(__file__),
                    way,
                    str(wait_ms),
                    str(cases),
                    f"--task={task}",
                    f"--model={fresh}",
                    f"--steps={steps}",
                    f"--out={out}",
                    name=task,
                )
                for task, out in zip(TASKS, outs, strict=True)
            ]
            windows = stage.wait(job_ids, on_look=lambda _: None, timeout_s=900)
            points = [pool_point(pool, at_us=one.now_us) for one, _, pool in stage.looks]
            seconds[way] = fmean(time for out in outs for time in step_times(out))
            window = Window(
                start_us=min(one.start_us for one in windows),
                end_us=max(one.end_us for one in windows),
            )
            pools[way] = pool_figures(points, window=window)
    return {
        "benchmark": "reward_end_to_end",
        "step_s": {way: round(found, 3) for way, found in seconds.items()},
        "shorter": round(seconds["in_turn"] / seconds["pool"], 2),
        "workers": pools["pool"],
        "steps": steps,
        "wait_ms": wait_ms,
        "cases": cases,
        "load_before": round(LOAD, 1),
    }


def step_times(out: Path) -> list[float]:
    """Return the wall time of each step but the first ones."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [line["wall_s"] for line in lines if line["kind"] == "step"][SKIPPED_STEPS:]


def control(way: str, wait_ms: int, cases: int) -> None:
    """Be a controller, whose samples the pool scores or it does itself, one after the other."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    import grpo_arithmetic
    from verifiable_tasks import TASKS as KNOWN

    for name in TASKS:
        KNOWN[name] = replace(KNOWN[name], make=waiting(KNOWN[name].make, wait_ms, max(1, cases)))
    settings = {"partial": False, "seconds": 30.0, "packages": cases > 0}
    grpo_arithmetic.attempt = (in_turn if way == "in_turn" else by_pool)(settings)
    grpo_arithmetic.main()


def waiting(
    make: Callable[[int], Iterator[Any]], wait_ms: int, cases: int
) -> Callable[[int], Iterator[Any]]:
    """Return the problems with so many tests, which wait before they call the function."""

    def made(seed: int) -> Iterator[Any]:
        for problem in make(seed):
            wait = f"__import__('time').sleep({wait_ms / 1e3})"
            tests = [{**test, "call": f"[{wait}, {test['call']}][1]"} for test in problem.tests]
            yield replace(problem, tests=tests * cases)

    return made


def by_pool(settings: Mapping[str, Any]) -> Attempt:
    """Return what has each sample scored while others are being generated."""

    def attempt(
        rollout: Any,
        task: Any,
        problems: Sequence[Any],
        *,
        n: int,
        seed: int,
    ) -> tuple[Any, list[float]]:
        samples = rollout.generate(
            [problem.prompt for problem in problems],
            n=n,
            max_tokens=task.max_tokens,
            temperature=1.0,
            seed=seed,
            score="code_python",
            references=[problem.tests for problem in problems],
            settings=settings,
        )
        return samples, [max(0.0, value) for value in samples.scores.filled(0.0)]

    return attempt


def in_turn(settings: Mapping[str, Any]) -> Attempt:
    """Return what generates, and then scores one sample after the other in this process."""
    from plexsvc.reward.programs.base import Scored, StageRun
    from plexsvc.reward.programs.registry import PROGRAMS
    from plexsvc.reward.sandbox.opening import open_sandbox

    sandbox = open_sandbox()
    (stage,) = PROGRAMS["code_python"].stages

    def score(sample: Any, problem: Any) -> float:
        work = StageRun(
            text=sample.text,
            reference=problem.tests,
            settings=settings,
            limits=stage.limits,
            sandbox=sandbox,
        )
        found = stage.run(work)
        return found.score if isinstance(found, Scored) else 0.0

    def attempt(
        rollout: Any,
        task: Any,
        problems: Sequence[Any],
        *,
        n: int,
        seed: int,
    ) -> tuple[Any, list[float]]:
        samples = rollout.generate(
            [problem.prompt for problem in problems],
            n=n,
            max_tokens=task.max_tokens,
            temperature=1.0,
            seed=seed,
        )
        return samples, [score(sample, problems[sample.prompt_index]) for sample in samples]

    return attempt


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model that was warmed up; else a random one")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--wait-ms", type=int, default=0, help="that each program waits")
    parser.add_argument("--cases", type=int, default=0, help="of each program, by a new Python")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="plexsvc-"))
    found = measure(
        directory,
        model=arguments.model,
        steps=arguments.steps,
        wait_ms=arguments.wait_ms,
        cases=arguments.cases,
    )
    sys.stdout.write(json.dumps(found) + "\n")


LOAD: Final = os.getloadavg()[0]

if __name__ == "__main__":
    if sys.argv[1:2] in (["pool"], ["in_turn"]):
        control(sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1)))
    else:
        main()

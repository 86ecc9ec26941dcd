"""Cost of `durability="step"`, and the pause of a job whose rank is killed.

    python -m benchmarks.durable_steps [--rounds 4] [--kills 4]

Two actors of one model (about 0.3 GB of parameters and moments) train on devices of their own, in
turn: one durable, one not. `step_s` is the median time of two passes and the step that follows
them, `cost` by how much longer the durable one's is. The state is copied beside the passes of the
next step: so each actor takes a few steps in a row, of which the first does not count, and `cost`
also holds what the copy takes of the processors. That is measured on one node, and again beside
another one, which copies each copy: `copies` is how many there were of the last step.

Then, on the one node, a rank of the durable one is killed, after a step and after two passes, which
are run again. `pause_s` is the time from the signal until the next operation has its answer, less
what that takes otherwise; the parts are those that `plexctl explain` tells, without the time until
the death is known. Medians, one JSON line each.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import plexclient as plex
from benchmarks.service import report
from plexsvc.weights.random_model import Shape, make_model
from tests.rigs.live_cluster import LiveCluster, rank_processes, start_cluster
from tests.rigs.workloads import fixed_batch

MODEL: Final = Shape(
    hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, ffn=2048, max_positions=512
)
Figures = dict[str, float]

DEVICE: Final = '{ kind = "train", bytes_total = 1073741824 }'
ONE_NODE: Final = {"node": [DEVICE, DEVICE]}
TWO_NODES: Final = {**ONE_NODE, "other": []}
IN_A_ROW: Final = 4
"""Steps of an actor before the other one's turn."""


def passes(actor: plex.Actor, *, seed: int) -> None:
    """Accumulate the gradients of two batches."""
    for part in range(2):
        batch = fixed_batch(2 * seed + part, sequences=8, longest=64)
        actor.forward_backward(batch, loss="ppo", clip=0.2)


def step_s(actor: plex.Actor, *, seed: int) -> float:
    """Return how long two passes and the step after them take."""
    since_s = time.monotonic()
    passes(actor, seed=seed)
    actor.step(lr=1e-4)
    return time.monotonic() - since_s


@contextmanager
def two_actors(
    options: dict[str, dict[str, Any]], *, nodes: Mapping[str, Sequence[str]] = ONE_NODE
) -> Iterator[tuple[LiveCluster, dict[str, plex.Job], dict[str, plex.Actor]]]:
    """Yield a service with two jobs, by name, and their actors, deployed with these options."""
    with tempfile.TemporaryDirectory(prefix="pxd") as scratch, ExitStack() as stack:
        home = Path(scratch)
        (home / "run").mkdir()
        report(parameters=make_model(home / "model", seed=0, shape=MODEL))
        live = stack.enter_context(start_cluster(home / "run", nodes=nodes))
        cluster = stack.enter_context(live.connect())
        jobs = {name: stack.enter_context(cluster.job(name)) for name in options}
        actors = {
            name: job.deploy(
                "actor",
                model=str(home / "model"),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-4),
                **options[name],
            )
            for name, job in jobs.items()
        }
        yield live, jobs, actors


def steps_of(actors: dict[str, plex.Actor], *, rounds: int) -> dict[str, list[float]]:
    """Return how long steps of each actor took that followed one of its own."""
    took: dict[str, list[float]] = {name: [] for name in actors}
    for number in range(rounds + 1):
        for name, actor in actors.items():
            found = [step_s(actor, seed=IN_A_ROW * number + one) for one in range(IN_A_ROW)]
            took[name] += found[1:] if number else []  # the first round makes the moments
    return took


def killed(live: LiveCluster, job: plex.Job, actor: plex.Actor, *, does_kill: bool) -> Figures:
    """Return how long an operation takes, after its rank was killed or not; and a pause's parts."""
    if does_kill:
        (pid,) = rank_processes(live, [actor.deployment_id])
        os.kill(pid, signal.SIGKILL)
    since_s = time.monotonic()
    actor.step(lr=1e-4)
    found = {"whole": time.monotonic() - since_s}
    parts = re.findall(r"(end|place|start|restore|replay) ([0-9.]+) s", live.explain(job.job_id))
    return {**found, **{name: float(seconds) for name, seconds in parts}}


def pauses(
    live: LiveCluster, job: plex.Job, actor: plex.Actor, *, kills: int, has_passes: bool
) -> Figures:
    """Return what kills before a step cost, and a pause's parts."""
    found: dict[bool, list[Figures]] = {False: [], True: []}
    for number in range(2 * kills):
        if has_passes:
            passes(actor, seed=100 + number)
        else:
            actor.noop()
        found[number % 2 == 1].append(killed(live, job, actor, does_kill=number % 2 == 1))
    medians = {name: statistics.median(one[name] for one in found[True]) for name in found[True][0]}
    medians["whole"] -= statistics.median(one["whole"] for one in found[False])
    return {name: round(seconds, 2) for name, seconds in medians.items()}


def report_cost(
    live: LiveCluster, jobs: dict[str, plex.Job], actors: dict[str, plex.Actor], *, rounds: int
) -> None:
    """Measure what copies cost a step."""
    took = steps_of(actors, rounds=rounds)
    medians = {name: statistics.median(found) for name, found in took.items()}
    report(
        copies=1 + ("if its node is lost, after seq" in live.explain(jobs["step"].job_id)),
        step_s={name: round(found, 3) for name, found in medians.items()},
        cost=round(medians["step"] / medians["none"] - 1, 3),
        quartiles_s={
            name: [round(one, 3) for one in statistics.quantiles(found, n=4)]
            for name, found in took.items()
        },
        load=round(os.getloadavg()[1], 1),
    )


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    durabilities = {name: {"durability": name} for name in ("none", "step")}
    with two_actors(durabilities, nodes=TWO_NODES) as (live, jobs, actors):
        report_cost(live, jobs, actors, rounds=options.rounds)
    with two_actors(durabilities) as (live, jobs, actors):
        report_cost(live, jobs, actors, rounds=options.rounds)
        for name, has_passes in (("after a step", False), ("after two passes", True)):
            found = pauses(
                live, jobs["step"], actors["step"], kills=options.kills, has_passes=has_passes
            )
            report(killed=name, pause_s=found.pop("whole"), parts_s=found)


if __name__ == "__main__":
    main()

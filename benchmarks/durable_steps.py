"""Cost of `durability="step"`, and the pause of a job whose rank is killed.

    python -m benchmarks.durable_steps [--rounds 4] [--kills 4] [--apart]

Two actors of one model (about 0.3 GB of parameters and moments) train on devices of their own, in
turn: one durable, one not. `step_s` is the median time of two passes and the step that follows
them, `cost` by how much longer the durable one's is. The state is copied beside the passes of the
next step: so each actor takes a few steps in a row, of which the first does not count, and `cost`
also holds what the copy takes of the processors. That is measured on one node, and again beside
another one, which copies each copy: `copies` is how many there were of the last step. `worked_s`
is what all processes of the cluster worked for a step: unlike time it hardly depends on neighbours.
With `--apart` ranks have the first processor for themselves, and all others, which copy, the rest:
so it is where a GPU trains, and the processors of its host have little to do.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import plexclient as plex
from benchmarks import load
from benchmarks.service import report
from plexsvc.node import found as node_agents
from plexsvc.weights.random_model import ModelShape, make_model
from tests.rigs.live_cluster import ROLLOUT, LiveCluster, rank_processes, start_cluster
from tests.rigs.workloads import fixed_batch

MODEL: Final = ModelShape(
    hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, ffn=2048, max_positions=512
)
Figures = dict[str, float]

DEVICE: Final = '{ kind = "train", bytes_total = 1073741824 }'
ONE_NODE: Final = {"node": [DEVICE, DEVICE]}
TWO_NODES: Final = {**ONE_NODE, "other": [ROLLOUT]}
IN_A_ROW: Final = 4
"""Steps of an actor before the other one's turn."""
COPIED_S: Final = 3.0
"""Pause after them, within which the last one's copies are made."""


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


@dataclass(slots=True)
class Took:
    """What steps of an actor took that followed one of its own."""

    steps_s: list[float] = field(default_factory=list)
    worked_s: list[float] = field(default_factory=list)
    """Of all processes of the cluster, for a step, with what followed; one figure a turn."""


def part(pids: Collection[int], ranks: Collection[int]) -> None:
    """Give the ranks among processes the first processor, and the others the rest."""
    first, *rest = sorted(os.sched_getaffinity(0))
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {first} if pid in ranks else rest)


def steps_of(
    live: LiveCluster, actors: dict[str, plex.Actor], *, rounds: int, is_apart: bool = False
) -> dict[str, Took]:
    """Return what steps took, by actor."""
    took = {name: Took() for name in actors}
    agents = [agent.pid for agent in node_agents.find_all(live.state_dir)]
    pids = {pid for root in [live.pid, *agents] for pid in [root, *load.family(root)]}
    if is_apart:
        part(pids, rank_processes(live, [actor.deployment_id for actor in actors.values()]))
    for number in range(rounds + 1):
        for name, actor in actors.items():
            before_ms = load.worked_ms(pids)
            steps_s = [step_s(actor, seed=IN_A_ROW * number + one) for one in range(IN_A_ROW)]
            time.sleep(COPIED_S)  # noqa: TID251 - real copies take real time
            if number:  # the first round makes the moments
                took[name].steps_s += steps_s[1:]
                worked_ms = load.worked_ms(pids) - before_ms
                took[name].worked_s.append(worked_ms / 1e3 / IN_A_ROW)
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
    live: LiveCluster,
    jobs: dict[str, plex.Job],
    actors: dict[str, plex.Actor],
    options: argparse.Namespace,
) -> None:
    """Measure what copies cost a step."""
    took = steps_of(live, actors, rounds=options.rounds, is_apart=options.apart)
    found_s = {name: statistics.median(one.steps_s) for name, one in took.items()}
    worked_s = {name: statistics.median(one.worked_s) for name, one in took.items()}
    report(
        apart=options.apart,
        copies=1 + ("if its node is lost, after seq" in live.explain(jobs["step"].job_id)),
        step_s={name: round(one, 3) for name, one in found_s.items()},
        cost=round(found_s["step"] / found_s["none"] - 1, 3),
        quartiles_s={
            name: [round(quartile, 3) for quartile in statistics.quantiles(one.steps_s, n=4)]
            for name, one in took.items()
        },
        worked_s={name: round(one, 3) for name, one in worked_s.items()},
        cost_in_work=round(worked_s["step"] / worked_s["none"] - 1, 3),
        load=round(os.getloadavg()[1], 1),
    )


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--apart", action="store_true")
    options = parser.parse_args()
    durabilities = {name: {"durability": name} for name in ("none", "step")}
    with two_actors(durabilities, nodes=TWO_NODES) as (live, jobs, actors):
        report_cost(live, jobs, actors, options)
    with two_actors(durabilities) as (live, jobs, actors):
        report_cost(live, jobs, actors, options)
        for name, has_passes in (("after a step", False), ("after two passes", True)):
            found = pauses(
                live, jobs["step"], actors["step"], kills=options.kills, has_passes=has_passes
            )
            report(killed=name, pause_s=found.pop("whole"), parts_s=found)


if __name__ == "__main__":
    main()

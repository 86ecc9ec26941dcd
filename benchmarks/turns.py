"""Turns of trajectories that go where there is room, against trajectories pinned to an engine.

    python -m benchmarks.turns [--trajectories 16] [--rounds 3] [--seed 0] [--slow 3]

Two vLLM engines of about 27 M random parameters (float32, CPU, one thread each). With `--slow` they
are of a tiny model, whose steps take 30 ms and 2 ms for each sample, as on a device, and so many
times as long on one: it lends what serving leaves. A trajectory has a
drawn number of turns (log-normal, from 1 to 16): a tool answers after a drawn time with 160
tokens, the model writes 8. All begin at once. *Pinned*: trajectory i is on engine i mod 2 for its
life, with its prefix in that cache. *Routed*: one deployment of two engines deals each turn, by
affinity, then by load. Rounds alternate, each with trajectories of its own; both systems run the
same. `bound` is the gain if the routed ones were limited by nothing but the turns of both engines,
each at its speed, and those of the longest trajectory. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks import padded_engines
from benchmarks.service import report
from tests.rigs.live_cluster import ROLLOUT, TRAIN, start_cluster
from tests.rigs.tiny_models import make_qwen3

TOOL_TOKENS: Final = 160
ANSWER_TOKENS: Final = 8
MOST_TURNS: Final = 16
TOOL_S: Final = 0.1
LENGTH: Final = 4096
WANTED: Final = 1.3
VOCAB: Final = range(2, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What its tools say, turn by turn, and after how long."""

    says: Sequence[Sequence[int]]
    after_s: Sequence[float]


def draw(dice: random.Random) -> Trajectory:
    """Return a trajectory of a drawn length."""
    turns = min(MOST_TURNS, max(1, round(math.exp(dice.gauss(1.2, 1.0)))))
    return Trajectory(
        says=[dice.choices(VOCAB, k=TOOL_TOKENS) for _ in range(turns)],
        after_s=[dice.expovariate(1 / TOOL_S) for _ in range(turns)],
    )


def play(rollout: plex.Rollout, trajectory: Trajectory) -> None:
    """Run a trajectory to its end."""
    session = rollout.session()
    for says, after_s in zip(trajectory.says, trajectory.after_s, strict=True):
        threading.Event().wait(after_s)
        session.generate(says, max_tokens=ANSWER_TOKENS, ignore_eos=True)


def run(rollouts: Sequence[plex.Rollout], trajectories: Sequence[Trajectory]) -> float:
    """Return the seconds that all take, each on the deployment of its turn."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(trajectories)) as players:
        ended = [
            players.submit(play, rollouts[index % len(rollouts)], one)
            for index, one in enumerate(trajectories)
        ]
        for one in ended:
            one.result()
    return time.monotonic() - began_s


def bound(trajectories: Sequence[Trajectory], *, slow: float) -> float:
    """Return the most that routing could gain by the numbers of turns alone."""
    turns = [len(one.says) for one in trajectories]
    pinned = max(slow * sum(turns[0::2]), sum(turns[1::2]))
    return pinned / max(sum(turns) / (1 + 1 / slow), *turns)


def make_model(place: Path, *, is_tiny: bool) -> Path:
    """Return a model that takes whole trajectories."""
    large = {"hidden": 512, "layers": 8, "heads": 8, "head_dim": 64, "ffn": 1536}
    model = make_qwen3(place / "model", seed=0, **({} if is_tiny else large))
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = LENGTH
    (model / "config.json").write_text(json.dumps(config))
    return model


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=float, default=0.0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="turns") as place:
        model = make_model(Path(place), is_tiny=options.slow > 0)
        if options.slow:
            padded_engines.install(Path(place), step_ms=30, sample_ms=2, slow=options.slow)
        nodes = {"only": [TRAIN, *[ROLLOUT] * 4]}
        with (
            start_cluster(Path(place), nodes=nodes) as live,
            live.connect() as cluster,
            cluster.job("turns") as job,
        ):

            def deploy(name: str, instances: int) -> plex.Rollout:
                made: plex.Rollout = job.deploy(
                    name,
                    model=str(model),
                    backend="vllm",
                    max_model_len=LENGTH,
                    kv_cache_bytes=512 << 20,
                    instances=instances,
                )
                return made

            pinned = [deploy("first", 1), deploy("second", 1)]
            routed = [deploy("both", 2)]
            took: dict[str, list[float]] = {"pinned": [], "routed": []}
            bounds = []
            for number in range(options.rounds):
                drawn = [draw(dice) for _ in range(options.trajectories)]
                bounds.append(bound(drawn, slow=options.slow or 1.0))
                systems = [("pinned", pinned), ("routed", routed)]
                for name, rollouts in systems[:: 1 if number % 2 else -1]:
                    took[name].append(run(rollouts, drawn))
    gains = [a / b for a, b in zip(took["pinned"], took["routed"], strict=True)]
    report(
        gain=round(sum(took["pinned"]) / sum(took["routed"]), 3),
        gain_median=round(statistics.median(gains), 3),
        bound=round(statistics.mean(bounds), 3),
        pinned_s=[round(one, 2) for one in took["pinned"]],
        routed_s=[round(one, 2) for one in took["routed"]],
        bounds=[round(one, 3) for one in bounds],
        wanted=WANTED,
        slow=options.slow,
    )


if __name__ == "__main__":
    main()

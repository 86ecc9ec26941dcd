"""Cost of `checkpoint_every`: the step time with checkpoints and without.

    python -m benchmarks.checkpoints [--steps 12] [--every 3]

Two durable actors of one model (0.3 GB of parameters and moments) train on devices of their own,
one step each in turn. One makes a checkpoint every few steps, which is written beside the passes of
the steps that follow. `step_s` is the mean time of two passes and a step, `cost` by how much longer
that of the one with checkpoints is; `every_step_s` are all of them. `written` counts its
checkpoints, of which the last one is compared with its seal. One JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import plexclient as plex
from benchmarks.durable_steps import DEVICE, MODEL, step_s
from benchmarks.service import report
from plexsvc.weights.checkpoints import check_model
from plexsvc.weights.random_model import make_model
from tests.rigs.live_cluster import start_cluster


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pxc") as scratch:
        home = Path(scratch)
        (home / "run").mkdir()
        parameters = make_model(home / "model", seed=0, shape=MODEL)
        with (
            start_cluster(home / "run", nodes={"node": [DEVICE, DEVICE]}) as live,
            live.connect() as cluster,
            cluster.job("without") as without,
            cluster.job("with") as job,
        ):
            actors = {
                every: one.deploy(
                    "actor",
                    model=str(home / "model"),
                    backend="megatron",
                    optimizer=plex.AdamW(lr=1e-4),
                    durability="step",
                    checkpoint_every=every,
                    keep=options.steps,
                )
                for every, one in ((0, without), (options.every, job))
            }
            took: dict[int, list[float]] = {every: [] for every in actors}
            for seed in range(options.steps + 1):
                for every, actor in actors.items():
                    duration_s = step_s(actor, seed=seed)
                    if seed:  # the first step makes the moments
                        took[every].append(duration_s)
            means = {every: statistics.fmean(found) for every, found in took.items()}
            place = live.state_dir / "checkpoints/default" / job.job_id
            written = sorted(place.glob("actor@*"), key=lambda one: one.stat().st_mtime)
            check_model(written[-1])
            report(
                parameters=parameters,
                every=options.every,
                written=len(written),
                nbytes=sum(file.stat().st_size for file in written[-1].iterdir()),
                step_s={every: round(found, 3) for every, found in means.items()},
                cost=round(means[options.every] / means[0] - 1, 3),
                every_step_s={every: [round(s, 2) for s in found] for every, found in took.items()},
            )


if __name__ == "__main__":
    main()

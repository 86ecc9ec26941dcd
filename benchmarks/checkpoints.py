"""Cost of `checkpoint_every`: the step time with checkpoints and without.

    python -m benchmarks.checkpoints [--rounds 4] [--every 3]

Two durable actors of one model (0.3 GB of parameters and moments) train on devices of their own, a
few steps in a row each, in turn (`durable_steps`). One makes a checkpoint every few steps, which is
written beside the passes of the steps that follow. `step_s` is the mean time of two passes and a
step, `cost` by how much longer that of the one with checkpoints is; `every_step_s` are all of them.
`written` counts its checkpoints, of which the last one is compared with its seal. JSON lines.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.durable_steps import IN_A_ROW, steps_of, two_actors
from benchmarks.service import report
from plexsvc.weights.checkpoints import check_model


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--every", type=int, default=3)
    options = parser.parse_args()
    durable = {"durability": "step", "keep": IN_A_ROW * (options.rounds + 1)}
    asked = {"without": durable, "with": {**durable, "checkpoint_every": options.every}}
    with two_actors(asked) as (live, jobs, actors):
        took = steps_of(live, actors, rounds=options.rounds)
        means = {name: statistics.fmean(one.steps_s) for name, one in took.items()}
        place = live.state_dir / "checkpoints/default" / jobs["with"].job_id
        written = sorted(place.glob("actor@*"), key=lambda one: one.stat().st_mtime)
        check_model(written[-1])
        report(
            every=options.every,
            written=len(written),
            nbytes=sum(file.stat().st_size for file in written[-1].iterdir()),
            step_s={name: round(found, 3) for name, found in means.items()},
            cost=round(means["with"] / means["without"] - 1, 3),
            every_step_s={name: [round(s, 2) for s in one.steps_s] for name, one in took.items()},
        )


if __name__ == "__main__":
    main()

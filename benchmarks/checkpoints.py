"""Cost of `checkpoint_every`: the step time with checkpoints and without.

    python -m benchmarks.checkpoints [--rounds 4] [--every 3]
    python -m benchmarks.checkpoints --over-nodes [--rounds 4]

Two durable actors of one model (0.3 GB of parameters and moments) train on devices of their own, a
few steps in a row each, in turn (`durable_steps`). One makes a checkpoint every few steps, which is
written beside the passes of the steps that follow. `step_s` is the mean time of two passes and a
step, `cost` by how much longer that of the one with checkpoints is; `every_step_s` are all of them.
`written` counts its checkpoints, of which the last one is compared with its seal. JSON lines.

`--over-nodes`: saves of state on two state managers (448 MiB, of which four sevenths lie in halves
on either), each in turn with as many bytes written and synced by one thread. `others_mib` is what a
node would bring here that gathers the other's part, `brought_mib` what either brought for a save.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.durable_steps import IN_A_ROW, steps_of, two_actors
from benchmarks.service import report
from plexsvc.weights.checkpoints import check_model
from tests.rigs.spread_state import SpreadState

MIB = 1 << 20
ROW_BYTES = 8 * MIB
STEP_BYTES = 64 * MIB


def write_s(path: Path, nbytes: int) -> float:
    """Return how long one thread takes to have so many bytes on the disk."""
    data, since_s = os.urandom(STEP_BYTES), time.monotonic()
    with path.open("wb", buffering=0) as file:
        for low in range(0, nbytes, STEP_BYTES):
            file.write(data[: nbytes - low])
            os.fdatasync(file.fileno())
    took_s = time.monotonic() - since_s
    path.unlink()
    return took_s


def over_nodes(rounds: int) -> None:
    """Measure saves of state on two nodes."""
    with tempfile.TemporaryDirectory(prefix="pxs", dir="/var/tmp") as home, ExitStack() as stack:
        state = SpreadState(Path(home), stack, row_bytes=ROW_BYTES)
        saves_s, disk_s, nbytes = list[float](), list[float](), 0
        for number in range(rounds):
            before, since_s = state.arrived(), time.monotonic()
            nbytes = state.save(f"run{number}").nbytes
            saves_s.append(time.monotonic() - since_s)
            brought = [now - then for now, then in zip(state.arrived(), before, strict=True)]
            disk_s.append(write_s(Path(home) / "plain", nbytes))
        report(
            nbytes=nbytes,
            others_mib=state.part_bytes("n1") / MIB,
            brought_mib=[n / MIB for n in brought],
            save_s=round(statistics.median(saves_s), 2),
            disk_s=round(statistics.median(disk_s), 2),
            every=[[round(s, 2) for s in pair] for pair in zip(saves_s, disk_s, strict=True)],
        )


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--over-nodes", action="store_true")
    options = parser.parse_args()
    if options.over_nodes:
        over_nodes(options.rounds)
        return
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

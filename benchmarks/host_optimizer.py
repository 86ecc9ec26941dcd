"""Speed of an optimizer's step in host memory, against that of the memory.

    python -m benchmarks.host_optimizer [--millions 64] [--threads 1 2] [--repeats 7]

The step is that of a rank over memory files with small pages, mapped as a rank maps them: the norm
of the gradients (`norm`), then the update (`update`), together `step`. It reads five floats of each
parameter and writes three. `triad` is STREAM's (a = b + s c), counted as three floats; `in_place`
is a = a + s b, with no hidden read of what it writes; the faster of the two is the memory's speed.
All run in turn; medians, in GB/s. JSON lines.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from benchmarks.service import report
from plexclient.specs import AdamW
from plexsvc.statelink.mapping import Extent
from plexsvc.statelink.regions import MappedHostMemory
from plexsvc.statemanager.hostcopy import HostCopy
from plexsvc.worker.backends.adamw import HostUpdate, Tensors, host_squares

FLOAT: Final = 4
UPDATE_FLOATS: Final = 7
PLAIN_FLOATS: Final = 3
TENSORS: Final = 16
"""Parameters are cut into so many tensors."""


class Memory:
    """Floats in host memory as the state manager makes it and a rank maps it."""

    def __init__(self, count: int) -> None:
        self._host = HostCopy(count * FLOAT)
        self._host.fill()
        self._mapped = MappedHostMemory(count * FLOAT, is_populated=True)
        self._mapped.attach(self._host.file.fd, [Extent(offset=0, nbytes=self._host.nbytes)])
        self.floats = self._mapped.tensor(count * FLOAT).view(torch.float32)
        self.floats.uniform_()


def speed(run: Callable[[], object], *, nbytes: int) -> float:
    """Return the speed of a run that touches `nbytes`, in GB/s."""
    start = time.perf_counter()
    run()
    return nbytes / (time.perf_counter() - start) / 1e9


def measured(memory: list[Memory], *, threads: int, repeats: int) -> dict[str, float]:
    """Return the median speeds by what was run, and the step's share of the memory's."""
    param, grad, exp_avg, exp_avg_sq = (one.floats for one in memory)
    chunks = (t.chunk(TENSORS) for t in (param, grad, exp_avg, exp_avg_sq))
    tensors = [
        Tensors(param=p, grad=g, exp_avg=m, exp_avg_sq=v, decays=True)
        for p, g, m, v in zip(*chunks, strict=True)
    ]
    update = HostUpdate(tensors, AdamW(), num_threads=threads)
    torch.set_num_threads(threads)
    runs: dict[str, tuple[Callable[[], object], int]] = {
        "in_place": (lambda: param.add_(grad, alpha=1e-9), PLAIN_FLOATS),
        "norm": (lambda: host_squares([grad], num_threads=threads), 1),
        "update": (lambda: update.apply(steps=5), UPDATE_FLOATS),
        "triad": (lambda: torch.add(grad, exp_avg, alpha=3.0, out=param), PLAIN_FLOATS),
    }
    found: dict[str, list[float]] = {what: [] for what in (*runs, "step", "share")}
    for number in range(repeats + 1):
        once = {
            what: speed(run, nbytes=floats * FLOAT * param.numel())
            for what, (run, floats) in runs.items()
        }
        taken = 1 / once["norm"] + UPDATE_FLOATS / once["update"]
        once["step"] = (1 + UPDATE_FLOATS) / taken
        once["share"] = once["step"] / max(once["triad"], once["in_place"])
        for what, each in once.items() if number else ():  # the first round warms up
            found[what].append(each)
    return {what: round(statistics.median(each), 3) for what, each in found.items()}


def main() -> None:
    """Print one line a number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=64, help="of parameters")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    memory = [Memory(options.millions << 20) for _ in range(4)]
    for threads in options.threads:
        found = measured(memory, threads=threads, repeats=options.repeats)
        report(threads=threads, millions=options.millions, **found)


if __name__ == "__main__":
    main()

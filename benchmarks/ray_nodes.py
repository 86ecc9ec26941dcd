"""How soon nodes of Ray may be used, and how soon they die.

    python -m benchmarks.ray_nodes [--repeats 5]

A service on a Ray cluster of one host. For each repeat a Ray node is started (`up_s`: from the
moment that it runs until its devices may be used), its NodeHost is killed (`host_s`: until no
process of the node is alive), once it is up again its raylet is killed (`raylet_s`), and another is
told to leave (`leaving_s`: until nothing further is placed there). `head_s` is the time from the
end of Ray's head and its restart at once until a node that is added then may be used. Medians and
the worst, in seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.service import report
from tests.rigs.on_ray import OnRay, start_on_ray
from tests.rigs.processes import descendants, is_alive
from tests.rigs.waiting import wait_until


def added_s(cluster: OnRay, name: str) -> float:
    """Start a Ray node; return how long it takes then until its devices may be used."""
    cluster.ray.add(name, pool="train")
    began_s = time.monotonic()
    cluster.wait_for(name, "up")
    return time.monotonic() - began_s


def dead_s(cluster: OnRay, name: str, *, victim: int) -> float:
    """Kill a process; return how long it takes until no process of the node is alive."""
    agent = cluster.agent(name)
    below = [agent, *descendants(agent)]
    began_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while any(is_alive(pid) for pid in below):
        time.sleep(0.005)  # noqa: TID251 - other processes have to end
    return time.monotonic() - began_s


def measure(cluster: OnRay, found: dict[str, list[float]], *, number: int) -> None:
    """Have two nodes come and go."""
    name, other = f"dies-{number}", f"leaves-{number}"
    found["up_s"].append(added_s(cluster, name))
    agent = cluster.agent(name)
    found["host_s"].append(dead_s(cluster, name, victim=cluster.host(name)))
    wait_until(
        lambda: cluster.nodes().get(name) == "up" and cluster.agent(name) not in {0, agent},
        what="it has another agent",
    )
    found["raylet_s"].append(dead_s(cluster, name, victim=cluster.ray.raylet(name)))
    cluster.ray.kill(name)
    added_s(cluster, other)
    began_s = time.monotonic()
    cluster.ray.notify(other)
    wait_until(lambda: cluster.nodes()[other] in {"draining", "drained"}, what="it is drained")
    found["leaving_s"].append(time.monotonic() - began_s)
    cluster.ray.kill(other)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="plex-ray-") as scratch,
        start_on_ray(Path(scratch)) as cluster,
    ):
        for number in range(options.repeats):
            measure(cluster, found, number=number)
        began_s = time.monotonic()
        cluster.ray.restart_head()
        added_s(cluster, "last")
        found["head_s"].append(time.monotonic() - began_s)
    for name, times_s in found.items():
        report(what=name, median=round(statistics.median(times_s), 2), worst=round(max(times_s), 2))


if __name__ == "__main__":
    main()

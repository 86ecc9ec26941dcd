"""How soon hosts die, are replaced, drained and added; what another host costs an operation.

    python -m benchmarks.hosts [--repeats 3]

A service and three nodes on hosts that are network namespaces, with the lease of the default
configuration; a job with a durable actor whose two ranks are on two hosts. Medians and the worst,
in seconds: `agent` from the kill of a host's agent until no process of the host is alive; `lost`
and `replaced` from the moment that a host is cut off until its node is lost, and until operations
of the job are answered from elsewhere; `drained` until a drained node is empty; `added` from the
command on a host that joins until its devices may be used; `service` from the kill of the service,
which is started again at once, until operations are answered. `noop` is the median of a no-op
operation on the service's host and on another, in milliseconds, for a client on the service's host.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import plexclient as plex
from benchmarks.service import report
from tests.rigs.network_hosts import HostCluster, network_hosts
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

NAMES = ("one", "two", "three", "four")


def took_s(act: Callable[[], object], until: Callable[[], object], *, what: str) -> float:
    """Do something; return how long it takes until something holds."""
    since_s = time.monotonic()
    act()
    wait_until(until, what=what, timeout_s=120)
    return time.monotonic() - since_s


def other_home(cluster: HostCluster, job: plex.Job) -> str:
    """Return a host of the job that is not the service's, once the job can do without it."""
    cluster.wait_for_copies(job)
    return next(name for name in cluster.homes(job) if name != NAMES[0])


def added_s(cluster: HostCluster, name: str) -> float:
    """Have a host join; return how long it takes until its devices may be used."""
    return took_s(
        lambda: cluster.join(name), lambda: cluster.nodes().get(name) == "up", what="it is up"
    )


def measure(
    cluster: HostCluster, job: plex.Job, actor: plex.Actor, found: dict[str, list[float]]
) -> None:
    """Have each fault once."""

    def is_in(name: str, state: str) -> Callable[[], bool]:
        return lambda: cluster.nodes().get(name) == state

    def step() -> None:
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()

    step()
    victim = other_home(cluster, job)
    agent = cluster.agent(victim)
    pids = cluster.host(victim).pids
    killed_s = took_s(
        lambda: os.kill(agent, signal.SIGKILL), lambda: not pids(), what="none is alive"
    )
    found["agent"].append(killed_s)
    step()
    wait_until(is_in(victim, "lost"), what="it is lost")
    found["added"].append(added_s(cluster, victim))

    victim = other_home(cluster, job)
    since_s = time.monotonic()
    found["lost"].append(took_s(cluster.host(victim).cut, is_in(victim, "lost"), what="it is lost"))
    step()
    found["replaced"].append(time.monotonic() - since_s)
    cluster.host(victim).mend()
    wait_until(is_in(victim, "up"), what="it is back")

    victim = other_home(cluster, job)
    found["drained"].append(
        took_s(
            lambda: cluster.plexctl("node", "drain", victim),
            is_in(victim, "drained"),
            what="it is drained",
        )
    )
    cluster.plexctl("node", "uncordon", victim)

    since_s = time.monotonic()
    cluster.kill()
    cluster.start()
    step()
    found["service"].append(time.monotonic() - since_s)


def noops_ms(address: str, token: str, model: str) -> dict[str, float]:
    """Return the median time of a no-op on each node."""
    found = {}
    with plex.connect(address, token=token) as cluster, cluster.job("noops") as job:
        for number in range(len(NAMES)):
            actor = job.deploy(
                f"actor-{number}", role="actor", model=model, backend="noop", optimizer=plex.AdamW()
            )
            times_s = []
            for _ in range(400):
                since_s = time.monotonic()
                actor.noop()
                times_s.append(time.monotonic() - since_s)
            found[actor.info.blocks[0].node_id] = statistics.median(times_s[50:]) * 1e3
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--noops", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.noops:
        print(json.dumps(noops_ms(*options.noops)))
        return
    found: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="plex-hosts-") as scratch,
        network_hosts(len(NAMES)) as hosts,
        HostCluster(Path(scratch), hosts, NAMES) as cluster,
    ):
        model = str(make_qwen3(Path(scratch) / "model", seed=1))
        for name in NAMES[1:]:
            found["added"].append(added_s(cluster, name))
        card = cluster.card
        asked = ("-m", "benchmarks.hosts", "--noops", card.address, card.token, model)
        noops = json.loads(cluster.on_head(*asked).splitlines()[-1])
        here, there = noops.pop(NAMES[0]), statistics.median(noops.values())
        report(what="noop", here_ms=here, there_ms=there, ratio=there / here)
        with plex.connect(card.address, token=card.token) as connection, connection.job("j") as job:
            actor = job.deploy(
                "actor",
                model=model,
                backend="megatron",
                parallel=plex.Parallel(pp=2),
                optimizer=plex.AdamW(lr=1e-3),
                durability="step",
            )
            for _ in range(options.repeats):
                measure(cluster, job, actor, found)
    for name, times_s in found.items():
        report(what=name, median=round(statistics.median(times_s), 2), worst=round(max(times_s), 2))


if __name__ == "__main__":
    main()

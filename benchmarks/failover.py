"""How long jobs stand still when their service dies, without and with a standby.

    python -m benchmarks.failover [--jobs 4] [--nodes 8] [--kills 5]

A service on PostgreSQL is killed with SIGKILL while each of its jobs runs no-ops on a training
deployment of its own; a standby, which waits by then, goes on with them. Then the same without a
standby, `plexctl up` being given at once. For each kill: the time from the signal until the first
job, and until the last, has an answer to an operation sent after it. Medians and the worst, in
seconds, one JSON line for each way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import plexclient as plex
from benchmarks.service import report
from tests.rigs.live_cluster import TRAIN, Service
from tests.rigs.postgres import running_postgres
from tests.rigs.tiny_models import make_qwen3


def answered_s(actor: plex.Actor) -> float:
    """Return when an operation that is sent now is answered."""
    actor.noop()
    return time.monotonic()


def measure(
    service: Service,
    actors: list[plex.Actor],
    *,
    kills: int,
    prepare: Callable[[], None],
    succeed: Callable[[], None],
) -> dict[str, float]:
    """Kill the service again and again; return how long its jobs waited."""
    first, last = list[float](), list[float]()
    with ThreadPoolExecutor(len(actors)) as threads:
        for _ in range(kills):
            prepare()
            for actor in actors:
                actor.noop()
            service.kill()
            killed_s = time.monotonic()
            answers = [threads.submit(answered_s, actor) for actor in actors]
            succeed()  # on this thread, because a service dies with the thread that started it
            ends = sorted(answer.result() for answer in answers)
            first.append(ends[0] - killed_s)
            last.append(ends[-1] - killed_s)
    return {
        "first_s": round(statistics.median(first), 2),
        "last_s": round(statistics.median(last), 2),
        "worst_s": round(max(last), 2),
    }


def main() -> None:
    """Measure both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plex-failover-") as scratch, running_postgres() as sql:
        home = Path(scratch)
        model = make_qwen3(home / "model", seed=1)
        nodes = {f"node-{number}": [TRAIN] for number in range(options.nodes)}
        extra = f'database = "{sql.create("failover")}"\n'
        with (
            Service(home, nodes=nodes, extra=extra) as service,
            service.live.connect() as cluster,
        ):
            jobs = [cluster.job(f"job-{number}").__enter__() for number in range(options.jobs)]
            actors = [
                job.deploy("actor", model=str(model), backend="noop", optimizer=plex.AdamW())
                for job in jobs
            ]
            ways = {
                "standby": (service.stand_by, service.succeed),
                "started again": (lambda: None, service.start),
            }
            for way, (prepare, succeed) in ways.items():
                found = measure(
                    service, actors, kills=options.kills, prepare=prepare, succeed=succeed
                )
                report(
                    way=way, jobs=options.jobs, nodes=options.nodes, kills=options.kills, **found
                )
            for job in jobs:
                job.__exit__(None, None, None)


if __name__ == "__main__":
    main()

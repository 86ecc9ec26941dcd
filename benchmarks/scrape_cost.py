"""What metrics cost: counting an operation, and a scrape of 20,000 series for the event loop.

    python -m benchmarks.scrape_cost [--nodes 64] [--devices 50] [--repeats 5]

A scheduler with nodes that are fakes in this process, asked as a scrape asks it. `count_us` and
`call_us` are the processor time of counting an operation and a call. `pass_ms` is the processor
time of the longest pass of the event loop while each part of a scrape was answered and while its
text was made, the worst of all repeats: so long the loop could do nothing else. What fake nodes
do in the same loop is in it; `quiet` is that alone. Processor time, since a busy machine hides what
a scrape costs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from benchmarks.service import report
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.router.http import metrics
from plexsvc.router.http.metrics import Meter
from plexsvc.rpc import loops
from tests.rigs.scheduler_rig import start_rig

REPLIES: Final[dict[str, type[Message]]] = {
    "GetPack": pb.PackReply,
    "ListNodes": pb.ListNodesReply,
    "ListInstances": pb.ListInstancesReply,
    "GetReport": pb.ReportReply,
}
COUNTS: Final = 50_000


def each_us(count: Callable[[], None]) -> float:
    """Return the processor time that something takes, the least of five rounds."""
    rounds_s = []
    for _ in range(5):
        since_s = time.thread_time()
        for _ in range(COUNTS):
            count()
        rounds_s.append(time.thread_time() - since_s)
    return round(min(rounds_s) / COUNTS * 1e6, 1)


async def longest_pass_ms(work: Coroutine[Any, Any, Any], found: dict[str, Any], name: str) -> Any:
    """Return what `work` does; keep the longest pass of the event loop meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(work)
        since_s = time.thread_time()
        while not running.done():
            await asyncio.sleep(0)
            now_s = time.thread_time()
            found[name] = max(found.get(name, 0.0), round((now_s - since_s) * 1e3, 2))
            since_s = now_s
    return running.result()


async def scrapes(place: Path, *, nodes: int, devices: int, repeats: int) -> dict[str, Any]:
    """Return what scrapes cost."""
    found: dict[str, float] = {}
    series = 0
    async with start_rig(place, nodes=[{"train": devices}] * nodes) as rig:
        sys.setswitchinterval(loops.SWITCH_S)
        loops.keep_what_is_there()
        await longest_pass_ms(asyncio.sleep(5), found, "quiet")
        for _ in range(repeats):
            answers = {}
            for name, reply in REPLIES.items():
                request: Any = metrics.ASKED[name]()
                request.is_operator = True
                asked = rig.scheduler.call(name, request, reply)
                answers[name] = await longest_pass_ms(asked, found, name)
            making = asyncio.to_thread(metrics.render, Meter(), answers)
            text = await longest_pass_ms(making, found, "text")
            series = sum(not line.startswith(b"#") for line in text.splitlines())
    return {"series": series, "pass_ms": found}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    meter = Meter()

    def call() -> None:
        with meter.calling("Operate"):
            pass

    with tempfile.TemporaryDirectory(prefix="plex-scrape-", dir="/tmp") as place:
        cost = loops.run(
            scrapes(
                Path(place),
                nodes=options.nodes,
                devices=options.devices,
                repeats=options.repeats,
            )
        )
    report(
        count_us=each_us(lambda: meter.answered("step", "", took_us=2300)),
        call_us=each_us(call),
        **cost,
    )


if __name__ == "__main__":
    main()

"""How fast the page shows a full Gantt chart in Chromium: 64 devices, 20,000 bars.

    python -m benchmarks.page [--devices 64] [--bars 20000] [--frames 300]

A router's HTTP front serves the page; replies are made up, spans in portions as the scheduler's.
The token is in the tab already. `first_paint_s`: from navigation until all bars are drawn, of which
`first_content_s` is when anything was. `redraw_ms`: a draw with all bars in view, rasterised;
each has another window, as dragging does. `frame_ms`: between frames while every frame draws.
Chromium is headless, without a GPU. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.router.auth import Caller, Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http import page
from plexsvc.router.http.server import serving
from plexsvc.rpc.services import reply_type
from plexsvc.scheduler.api.views.status import MAX_SPANS
from tests.rigs import chromium

SERVICE = pb.DESCRIPTOR.services_by_name["Router"]
JOBS = 24
WINDOW_US = 50_000_000
"""What the page shows when it is opened, less the part ahead of now."""
KINDS = ("forward_backward", "forward", "step", "load", "offload")
SHOWN = "window.plexsvc && plexsvc.gantt.shown.count >= %d && plexsvc.gantt.shown.at"
FRAMES = """new Promise((done) => {
  const gantt = plexsvc.gantt, draws = [], frames = [], end = gantt.end, span = gantt.span;
  gantt.follows = false;
  let last = performance.now(), drawn = 1e9;
  const frame = () => {
    frames.push(performance.now() - last);
    last = performance.now();
    gantt.end = end + span * 0.002 * Math.sin(draws.length);
    gantt.draw();
    gantt.context.getImageData(0, 0, 1, 1);
    draws.push(performance.now() - last);
    drawn = Math.min(drawn, gantt.drawn);
    if (draws.length < %d) requestAnimationFrame(frame);
    else done({ draws, frames: frames.slice(1), drawn });
  };
  requestAnimationFrame(frame);
})"""


class Cluster:
    """Answers as a service whose devices were busy all the time."""

    def __init__(self, *, devices: int, bars: int) -> None:
        dice = random.Random(7)
        now_us = time.time_ns() // 1000
        each, length_us = bars // devices, WINDOW_US * devices // bars
        self.status = pb.ClusterStatus(now_us=now_us, scheduler_epoch=1)
        self.status.jobs.extend(pb.Job(job_id=f"job-{n}", name=f"math-{n}") for n in range(JOBS))
        self.spans = []
        for at in range(each):
            for device in range(devices):
                start_us = now_us - (each - at) * length_us
                took_us = round(length_us * dice.uniform(0.5, 0.98))
                job = f"job-{dice.randrange(JOBS)}"
                span = pb.Span(
                    index=len(self.spans) + 1,
                    node_id=f"node-{device // 8}",
                    device=device % 8,
                    kind=dice.choice(KINDS),
                    job_id=job,
                    deployment_id=f"{job}/actor",
                    operation_id=dice.randbytes(16),
                    start_us=start_us,
                    end_us=start_us + took_us,
                )
                self.spans.append(span)
        for device in range(devices):
            self.status.devices.add(node_id=f"node-{device // 8}", index=device % 8, kind="train")

    async def ask(self, name: str, request: Any, caller: Caller) -> Message:
        """Return the reply of a method."""
        del caller
        if name == "GetStatus":
            return self.status
        if name == "Timeline":
            spans = self.spans[request.after_index : request.after_index + MAX_SPANS]
            return pb.TimelineReply(spans=spans, next_index=request.after_index + len(spans))
        return reply_type(SERVICE.methods_by_name[name])()


async def measure(*, devices: int, bars: int, frames: int) -> dict[str, Any]:
    cluster = Cluster(devices=devices, bars=bars)
    config = RouterConfig(http_listen="127.0.0.1:0")
    routes, tenants = page.routes(cluster.ask), Tenants({"secret": "lab"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with (
            serving(routes, tenants=tenants, config=config, files=page.files()) as address,
            chromium.opened(Path(profile)) as tab,
        ):
            await tab.size(1280, 1500)  # as high as all lanes
            await tab.go(f"http://{address}/")
            await tab.ask("sessionStorage.setItem('plexsvc-token', 'secret')")
            paints = []
            for _ in range(5):
                await tab.go(f"http://{address}/")
                paints.append(await tab.until(SHOWN % len(cluster.spans)))
            content = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            first = await tab.ask(content)
            await tab.ask("plexsvc.gantt.fit()")
            told = await tab.ask(FRAMES % frames)
    return {
        "bars": len(cluster.spans),
        "bars_drawn": told["drawn"],
        "first_content_s": round(first / 1e3, 3),
        "first_paint_s": [round(shown / 1e3, 3) for shown in paints],
        "redraw_ms": percentiles(told["draws"]),
        "frame_ms": percentiles(told["frames"]),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 1)
        for share in (50, 95, 99)
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--bars", type=int, default=20_000)
    parser.add_argument("--frames", type=int, default=300)
    given = parser.parse_args()
    told = asyncio.run(measure(devices=given.devices, bars=given.bars, frames=given.frames))
    print(json.dumps(told))


if __name__ == "__main__":
    main()

"""The page in Chromium, on a live cluster: what it shows is what `plexctl` says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import plexclient as plex
from plexclient.errors import PlexError
from tests.fakes import fake_noop_preload
from tests.rigs import chromium, light_nodes
from tests.rigs.live_cluster import MIB, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRAIN = f'{{ kind = "train", bytes_total = {MIB} }}'
OPEN = """
tokens = { "token-of-ops" = "ops", "token-of-lab" = "lab", "token-of-rival" = "rival" }
router.http_listen = "127.0.0.1:0"
"""
SHOTS: Final = Path(__file__).parents[2] / "runs" / "page"
"""Where pictures of the page are kept."""
VIEWS: Final = ("devices", "queue", "jobs", "nodes", "instances", "rewards", "bill")


@dataclass(slots=True)
class Looping:
    """A job that steps until it is told to rest, and lives on until it is told to stop."""

    tenant: str
    job_id: str = ""
    steps: int = 0
    rests: threading.Event = field(default_factory=threading.Event)
    is_resting: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, live: LiveCluster) -> None:
        with (
            plex.connect(live.address, token=f"token-of-{self.tenant}") as connection,
            connection.job(f"math-{self.tenant}") as job,
        ):
            self.job_id = job.job_id
            actor = job.deploy("actor", model="", backend="noop", role="actor")
            while not self.rests.wait(0.02):
                actor.zero_grad()
                self.steps += 1
                job.report(step=self.steps, reward=self.steps / (self.steps + 20))
            job.report(step=self.steps, reward=0.625)
            self.is_resting.set()
            self.stop.wait()


@contextmanager
def running(live: LiveCluster, *jobs: Looping) -> Iterator[None]:
    threads = [threading.Thread(target=job.run, args=(live,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for job in jobs:
            job.rests.set()
            job.stop.set()
        for thread in threads:
            thread.join(120)


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster at rest: its two jobs have done their steps, and live."""

    live: LiveCluster
    lab: Looping
    rival: Looping

    @property
    def url(self) -> str:
        return f"http://{self.live.http}/"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    nodes = {"left": [TRAIN, TRAIN], "right": [TRAIN]}
    extra, bounds = OPEN, SHARES_ALL
    place = tmp_path_factory.mktemp("page")
    light = light_nodes.environment(place, preload=fake_noop_preload)
    with start_cluster(
        place, nodes=nodes, extra=extra, scheduler=bounds, environment=light
    ) as live:
        jobs = Looping("lab"), Looping("rival")
        with running(live, *jobs):
            wait_until(lambda: all(job.steps > 40 for job in jobs), what="both jobs step")
            for job in jobs:
                job.rests.set()
            for job in jobs:
                assert job.is_resting.wait(120)
            reported = f"plexctl status has the last reward of {jobs[0].job_id}"
            wait_until(lambda: progress(live, jobs[0]).get("reward") == 0.625, what=reported)
            yield Watched(live, *jobs)


def progress(live: LiveCluster, job: Looping) -> Any:
    return plexctl(live, "status", token="token-of-lab")["progress"][job.job_id]["metrics"]


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[chromium.Tab]:
    async with chromium.opened(tmp_path) as opened:
        await opened.size(1280, 860)
        yield opened
        assert opened.complaints == []


def plexctl(live: LiveCluster, *arguments: str, token: str = "token-of-ops") -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "plexsvc.cli.main", *arguments, "--json"],
        env=os.environ | {"PLEX_ADDRESS": live.address, "PLEX_TOKEN": token},  # noqa: TID251 - what plexctl inherits
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def timeless(text: str) -> str:
    """Return a text without the numbers that differ from one moment to the next."""
    return re.sub(r"[\d.]+ m?s", "T", text)


async def enter(tab: chromium.Tab, watched: Watched, token: str) -> None:
    """Give the page a token as a person does, and wait for what it shows first."""
    await tab.go(watched.url)
    await tab.until("!document.getElementById('door').hidden")
    await tab.ask(f"document.getElementById('token').value = {token!r}")
    await tab.ask("document.querySelector('#door button').click()")
    await tab.until("document.querySelector('[data-tile=nodes]')")


async def view(tab: chromium.Tab, name: str, ready: str) -> Any:
    await tab.ask(f"location.hash = {name!r}")
    return await tab.until(ready)


async def row(tab: chromium.Tab, row_id: str) -> dict[str, str]:
    """Return the cells of a row by their columns."""
    selector = f'[data-id="{row_id}"] [data-c]'
    found = await tab.until(
        f"(cells => cells.length && cells)([...document.querySelectorAll({selector!r})]"
        ".map(one => [one.dataset.c, one.textContent]))"
    )
    return dict(found)


async def deployments(tab: chromium.Tab) -> list[str]:
    """Return of which deployment each bar is that has a name."""
    found: list[str] = await tab.ask(
        "[...plexsvc.gantt.lanes.values()].flatMap(lane => lane.bars)"
        ".filter(bar => bar.deployment).map(bar => bar.deployment)"
    )
    return found


async def test_numbers_are_those_that_plexctl_says(watched: Watched, tab: chromium.Tab) -> None:
    status = plexctl(watched.live, "status", token="token-of-lab")
    (job,) = status["jobs"]
    await enter(tab, watched, "token-of-lab")
    tiles = await tab.ask(
        "Object.fromEntries([...document.querySelectorAll('[data-tile]')]"
        ".map(one => [one.dataset.tile, one.textContent]))"
    )
    assert tiles["jobs running"] == "1"
    assert tiles["devices busy"] == f"0 / {len(status['devices'])}"
    assert tiles["nodes"] == "2"
    await view(tab, "jobs", "document.querySelector('#view tbody')")
    shown = await row(tab, job["job_id"])
    assert (shown["job"], shown["name"], shown["state"]) == (job["job_id"], "math-lab", "running")
    assert (shown["step"], shown["reward"]) == (str(watched.lab.steps), "0.625")
    assert shown["operations"] == job["operations_done"]
    assert shown["device s"] == f"{int(job['device_us']) / 1e6:.1f}"
    await view(tab, "nodes", "document.querySelector('#view tbody')")
    for device in status["devices"]:
        shown = await row(tab, f"{device['node_id']}:{device['index']}")
        assert (shown["kind"], shown["switches"]) == (device["kind"], device["switches"])
    await view(tab, f"job/{job['job_id']}", "document.querySelector('.why p')")
    why = await tab.ask("document.querySelector('.why p').textContent")
    told = plexctl(watched.live, "explain", job["job_id"], token="token-of-lab")["text"]
    assert timeless(why) == timeless(told)
    await view(tab, "bill", "document.querySelector('[data-id=all]')")
    tenants = plexctl(watched.live, "report", token="token-of-lab")["tenants"]
    (tenant,) = [one for one in tenants if one["tenant"] == "lab"]
    assert (await row(tab, "lab"))["device s"] == f"{int(tenant['device_us']) / 1e6:.1f}"


async def test_bars_are_the_timelines_and_a_click_tells_of_one(
    watched: Watched, tab: chromium.Tab
) -> None:
    spans = watched.live.timeline()
    await enter(tab, watched, "token-of-lab")
    await tab.until(f"plexsvc.gantt.count === {len(spans)}")
    await tab.ask("plexsvc.gantt.fit()")
    assert await tab.until("plexsvc.gantt.drawn") <= len(spans)
    own = await deployments(tab)
    assert set(own) == {f"{watched.lab.job_id}/actor"}
    assert 0 < len(own) < len(spans), "another tenant's bars have no name"
    place = await tab.ask(
        "(() => { const g = plexsvc.gantt; for (const lane of g.lanes.values())"
        " for (const bar of lane.bars) if (bar.deployment && bar.operation) {"
        " g.follows = false; g.span = (bar.end - bar.start) * 3; g.end = bar.end + g.span / 3;"
        " g.draw(); const box = g.canvas.getBoundingClientRect();"
        " return [box.left + g.x((bar.start + bar.end) / 2), box.top + lane.y + 8, bar.kind] } })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        await tab.call("Input.dispatchMouseEvent", type=kind, **at)
    told = await tab.until("document.querySelector('#bar .card')?.innerText")
    assert place[2] in told
    assert watched.lab.job_id in told
    await tab.ask("document.querySelector('#bar [data-explain]').click()")
    assert await tab.until("document.querySelector('#bar .why p')?.textContent")
    # An operation whose answer was acknowledged is explained no more, and the page says so.
    tab.complaints = [one for one in tab.complaints if "/page/look/explain" not in one]


async def test_a_page_shows_nobody_what_the_cli_would_not(
    watched: Watched, tab: chromium.Tab
) -> None:
    await tab.go(watched.url)
    await tab.ask("document.getElementById('token').value = 'guessed'")
    await tab.ask("document.querySelector('#door button').click()")
    refusal = await tab.until("document.getElementById('refusal').textContent")
    assert "a token this router does not know" in refusal
    assert await tab.ask("sessionStorage.length") == 0
    await enter(tab, watched, "token-of-rival")
    for name in VIEWS:
        ready = f"document.querySelector('nav a.here').textContent.toLowerCase() === {name!r}"
        await view(tab, name, ready)
        text = await tab.ask("document.body.innerText")
        assert watched.lab.job_id not in text
        assert "math-lab" not in text
    for job in (watched.lab.job_id, "job-0000"):
        why = await view(tab, f"job/{job}", "document.querySelector('.why.bad p')?.textContent")
        assert job in why, "it is refused by name"
    codes = [one for one in tab.complaints if "status of 40" in one]
    tab.complaints = [one for one in tab.complaints if one not in codes]
    assert len(codes) >= 3, "a wrong token, a foreign job, an unknown one"


async def test_an_operator_sees_every_tenants_jobs_by_name(
    watched: Watched, tab: chromium.Tab
) -> None:
    await enter(tab, watched, "token-of-ops")
    await tab.until(f"plexsvc.gantt.count === {len(watched.live.timeline())}")
    named = {f"{job.job_id}/actor" for job in (watched.lab, watched.rival)}
    assert set(await deployments(tab)) == named
    await view(tab, "jobs", "document.querySelector('#view tbody')")
    for job in (watched.lab, watched.rival):
        assert (await row(tab, job.job_id))["tenant"] == job.tenant
    ready = "document.querySelector('[data-fact=\"device time\"]')?.textContent"
    told = await view(tab, f"job/{watched.rival.job_id}", ready)
    jobs = {one["job_id"]: one for one in plexctl(watched.live, "report")["jobs"]}
    assert told == f"{int(jobs[watched.rival.job_id]['device_us']) / 1e6:.1f} s"


async def test_what_waits_is_shown_with_its_reason_and_explained(
    watched: Watched, tab: chromium.Tab
) -> None:
    for node in ("left", "right"):
        plexctl(watched.live, "node", "cordon", node)
    waiting = Looping("lab")

    def wait() -> None:
        with suppress(PlexError):
            waiting.run(watched.live)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        await enter(tab, watched, "token-of-lab")
        card = await view(tab, "queue", "document.querySelector('#view article')?.dataset.id")
        pack = plexctl(watched.live, "pack", token="token-of-lab")
        (one,) = pack["waiting"]
        assert card == one["deployment_id"]
        assert timeless((await row(tab, card))["reason"]) == timeless(one["reason"])
        await tab.ask("document.querySelector('[data-explain]').click()")
        why = await tab.until("document.querySelector('.why')?.innerText")
        told = plexctl(watched.live, "explain", one["job_id"], token="token-of-lab")["text"]
        assert timeless(told) in timeless(why)
        SHOTS.mkdir(parents=True, exist_ok=True)
        await tab.shot(SHOTS / "waiting.png")
    finally:
        for node in ("left", "right"):
            plexctl(watched.live, "node", "uncordon", node)
        waiting.rests.set()
        waiting.stop.set()
        thread.join(120)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_is_drawn_and_a_picture_kept(
    watched: Watched, tab: chromium.Tab, theme: str
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    await tab.go(watched.url)
    await tab.ask(f"localStorage.setItem('plexsvc-theme', {theme!r})")
    await enter(tab, watched, "token-of-ops")
    for name in (*VIEWS, f"job/{watched.lab.job_id}"):
        ready = "![...document.querySelectorAll('.empty')].some(one => one.textContent === '…')"
        await view(tab, name, ready)
        if name == "devices":
            await tab.ask("plexsvc.gantt.fit()")
            await tab.until("document.querySelector('#busy .uplot')")
        assert await tab.ask("document.documentElement.scrollWidth") <= 1280, name
        await tab.shot(SHOTS / f"{name.partition('/')[0]}-{theme}.png")

"""The admin's day on a live cluster: the real commands, two tenants, nodes out and in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from tests.fakes import fake_noop_preload
from tests.rigs import light_nodes
from tests.rigs.another_node import another_node
from tests.rigs.live_cluster import MIB, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRAIN = f'{{ kind = "train", bytes_total = {MIB} }}'
TENANTS = """
tokens = { "token-of-ops" = "ops", "token-of-lab" = "lab", "token-of-rival" = "rival" }
"""
BOUNDS = SHARES_ALL


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the autoscaler was told, a line each time."""
    return tmp_path_factory.mktemp("told") / "told"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, told: Path) -> Iterator[LiveCluster]:
    """Two nodes with one small training device each; `ops` is on the card."""
    nodes = {"left": [TRAIN], "right": [TRAIN]}
    extra = f'autoscaler = ["sh", "-c", "cat >> {told}; echo >> {told}"]\n{TENANTS}'
    place = tmp_path_factory.mktemp("ops")
    light = light_nodes.environment(place, preload=fake_noop_preload)
    with start_cluster(
        place, nodes=nodes, extra=extra, scheduler=BOUNDS, environment=light
    ) as started:
        yield started


@dataclass(slots=True)
class Loop:
    """A job that trains in cycles, in a thread, until it is told to stop."""

    job_id: str = ""
    steps: int = 0
    error: BaseException | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, cluster: LiveCluster, *, name: str, tenant: str, pause_s: float) -> None:
        """Step and pause; a failure is kept for the test."""
        try:
            with (
                plex.connect(cluster.address, token=f"token-of-{tenant}") as connection,
                connection.job(name) as job,
            ):
                self.job_id = job.job_id
                actor = job.deploy("actor", model="", backend="noop", role="actor")
                while not self.stop.wait(pause_s):
                    actor.zero_grad()
                    actor.noop()
                    self.steps += 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.error = error


@contextmanager
def looping(cluster: LiveCluster, *tenants: str, pause_s: float = 0.05) -> Iterator[list[Loop]]:
    """Run one job a tenant; all must end without an error."""
    loops = [Loop() for _ in tenants]
    threads = [
        threading.Thread(
            target=loop.run,
            args=(cluster,),
            kwargs={"name": f"{tenant}-job", "tenant": tenant, "pause_s": pause_s},
        )
        for loop, tenant in zip(loops, tenants, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(loop.steps > 2 for loop in loops), what="jobs step")
        yield loops
    finally:
        for loop in loops:
            loop.stop.set()
        for thread in threads:
            thread.join(120)
    assert [loop.error for loop in loops] == [None] * len(loops)


def run(
    cluster: LiveCluster, *arguments: str, token: str = "token-of-ops"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plexsvc.cli.main", *arguments],
        env=os.environ | {"PLEX_ADDRESS": cluster.address, "PLEX_TOKEN": token},  # noqa: TID251 - what plexctl inherits
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def plexctl(cluster: LiveCluster, *arguments: str, token: str = "token-of-ops") -> Any:
    done = run(cluster, *arguments, "--json", token=token)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def homes(cluster: LiveCluster) -> dict[str, str]:
    """Return the node of each job."""
    nodes = plexctl(cluster, "node", "list")["nodes"]
    return {r["job_id"]: node["node_id"] for node in nodes for r in node["residents"]}


def states(cluster: LiveCluster) -> dict[str, str]:
    return {n["node_id"]: n["state"] for n in plexctl(cluster, "node", "list")["nodes"]}


def more_steps(loops: list[Loop]) -> Callable[[], bool]:
    before = [loop.steps for loop in loops]
    return lambda: all(
        loop.error is not None or loop.steps > count + 2
        for loop, count in zip(loops, before, strict=True)
    )


def test_the_plan_and_its_reasons_are_shown_without_foreign_names(live: LiveCluster) -> None:
    with looping(live, "lab", "rival") as (mine, theirs):
        pack = plexctl(live, "pack")
        seen = {r["job_id"]: r["tenant"] for g in pack["groups"] for r in g["residents"]}
        assert seen == {mine.job_id: "lab", theirs.job_id: "rival"}
        hidden = plexctl(live, "pack", token="token-of-lab")
        names = sorted(r["job_id"] for g in hidden["groups"] for r in g["residents"])
        assert names == ["", mine.job_id]
        picture = run(live, "pack", "--window", "2", token="token-of-lab").stdout
        assert "lab-job/actor ▕" in picture
        assert "another tenant's ▕" in picture
        told = plexctl(live, "explain", mine.job_id, token="token-of-lab")
        assert told["text"].startswith(f"{mine.job_id} is running: actor ")
        foreign = run(live, "explain", theirs.job_id, token="token-of-lab")
        assert (foreign.returncode, theirs.job_id in foreign.stderr) == (1, True)
        report = plexctl(live, "report")
        assert {t["tenant"] for t in report["tenants"]} == {"lab", "rival"}
        assert all(int(job["device_us"]) > 0 for job in report["jobs"])
        own = plexctl(live, "report", token="token-of-lab")
        assert [job["job_id"] for job in own["jobs"]] == [mine.job_id]


def test_only_operators_change_anything(live: LiveCluster) -> None:
    for command in (["node", "drain", "left"], ["pack", "--apply"], ["job", "pin", "job-1"]):
        done = run(live, *command, token="token-of-lab")
        assert (done.returncode, done.stdout) == (1, "")
        assert "router.operators: ops" in done.stderr
    assert states(live) == {"left": "up", "right": "up"}


def test_a_what_if_answers_from_a_file_and_a_bad_one_is_misuse(
    live: LiveCluster, tmp_path: Path
) -> None:
    job = {
        "job_id": "new",
        "arrival_s": 0,
        "nodes": 1,
        "cycles": 10,
        "period_s": 10,
        "segments": [{"phase": "train", "offset_s": 0, "duration_s": 1}],
    }
    (tmp_path / "job.json").write_text(json.dumps(job, indent=1))
    found = plexctl(live, "pack", "--what-if", str(tmp_path / "job.json"))
    assert (found["fits"], found["opens_group"], len(found["devices"])) == (True, True, 1)
    (tmp_path / "job.json").write_text(json.dumps(job | {"period_s": -1}))
    bad = run(live, "pack", "--what-if", str(tmp_path / "job.json"))
    assert (bad.returncode, "field period_s" in bad.stderr) == (2, True)


def test_a_cordoned_node_takes_nothing_and_an_added_one_does(
    live: LiveCluster, tmp_path: Path
) -> None:
    small = '{ kind = "train", bytes_total = 1048576 }'
    with another_node(live, tmp_path, node_id="extra", device=small) as address:
        assert plexctl(live, "node", "add", address)["state"] == "up"
        for node in ("left", "right"):
            assert plexctl(live, "node", "cordon", node)["state"] == "cordoned"
        try:
            with looping(live, "lab") as (loop,):
                assert homes(live) == {loop.job_id: "extra"}
        finally:
            for node in ("left", "right"):
                plexctl(live, "node", "uncordon", node)
    wait_until(lambda: states(live)["extra"] == "lost", what="the added node's loss is noticed")


def test_what_waits_is_wanted_by_kind_and_reason_and_an_autoscaler_is_told(
    live: LiveCluster, told: Path
) -> None:
    plexctl(live, "node", "cordon", "left")
    assert plexctl(live, "node", "drain", "right", "--wait")["state"] == "drained"
    loop = Loop()
    given = {"name": "waits", "tenant": "lab", "pause_s": 0.05}
    thread = threading.Thread(target=loop.run, args=(live,), kwargs=given)
    thread.start()
    wanted = {"missing": 0, "idle": 0, "wanted": {"closed": 1}}
    try:
        wait_until(lambda: plexctl(live, "wanted")["kinds"] == {"train": wanted}, what="it waits")
        found = plexctl(live, "wanted")
        assert found["drained"] == ["right"]
        wait_until(lambda: told.exists() and json.dumps(found) in told.read_text(), what="told")
    finally:
        for node in ("left", "right"):
            plexctl(live, "node", "uncordon", node)
    wait_until(lambda: loop.steps > 2 or loop.error is not None, what="it runs")
    loop.stop.set()
    thread.join(120)
    assert loop.error is None
    assert plexctl(live, "wanted") == {"kinds": {}, "drained": []}


def test_a_drained_node_is_empty_while_its_jobs_go_on(live: LiveCluster) -> None:
    with looping(live, "lab", "rival") as loops:
        home = homes(live)[loops[0].job_id]
        other = "left" if home == "right" else "right"
        done = run(live, "node", "drain", home, "--wait", "--timeout", "60")
        assert done.returncode == 0, done.stdout + done.stderr
        assert states(live)[home] == "drained"
        assert set(homes(live).values()) == {other}
        wait_until(more_steps(loops), what="both jobs step on")
        assert plexctl(live, "node", "uncordon", home)["state"] == "up"


def test_a_job_is_moved_by_hand_and_stays_when_it_is_pinned(live: LiveCluster) -> None:
    with looping(live, "lab", "rival") as loops:
        job_id = loops[0].job_id
        home = homes(live)[job_id]
        other = "left" if home == "right" else "right"
        moved = plexctl(live, "job", "move", job_id, "--to", other)["moves"]
        assert [move["to_devices"] for move in moved] == [[f"{other}:0"]]
        wait_until(lambda: homes(live)[job_id] == other, what="the job lives there")
        wait_until(more_steps(loops), what="both jobs step on")
        plexctl(live, "job", "pin", job_id)
        assert "pinned" in plexctl(live, "explain", job_id)["text"]

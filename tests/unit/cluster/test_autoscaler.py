"""The command of an autoscaler: told of what is another, and again if it failed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.cluster import autoscaler
from plexsvc.errors import unavailable
from tests.fakes.fake_clock import FakeClock

NOTES = """
import json, pathlib, sys
place = pathlib.Path(sys.argv[1])
told = place.read_text().splitlines() if place.exists() else []
place.write_text("\\n".join([*told, sys.stdin.read()]))
sys.exit(len(told) == 0)
"""


def of(missing: int) -> dict[str, Any]:
    demand = pb.KindDemand(kind="train", missing=missing)
    return autoscaler.told(pb.PackReply(demand=[demand]), pb.ListNodesReply())


def test_only_nodes_that_are_drained_may_be_given_back() -> None:
    states = ("up", "cordoned", "draining", "drained", "lost")
    nodes = [pb.NodeView(node_id=f"is-{state}", state=state) for state in states]
    told = autoscaler.told(pb.PackReply(), pb.ListNodesReply(nodes=nodes))
    assert told["drained"] == ["is-drained"]


async def test_the_command_is_told_once_of_each_state_and_again_if_it_failed(
    tmp_path: Path,
) -> None:
    empty: dict[str, Any] = {"kinds": {}, "drained": []}
    looks = deque([empty, of(3), of(3), None, of(3), of(1)])
    done = asyncio.Event()

    async def look() -> dict[str, Any]:
        if not looks:
            done.set()
            return of(1)
        found = looks.popleft()
        if found is None:
            raise unavailable("not now")
        return found

    class FakeHurry(FakeClock):
        async def sleep(self, duration_us: int) -> None:
            await asyncio.sleep(0)

    command = (sys.executable, "-c", NOTES, str(tmp_path / "told"))  # it fails the first time
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(autoscaler.follow(command, look, clock=FakeHurry()))
        async with asyncio.timeout(120):
            await done.wait()
        following.cancel()
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told == [of(3), of(3), of(1)]


async def test_a_command_that_cannot_be_started_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not autoscaler._call(("/none/such",), of(1))
    assert "trying again" in caplog.text

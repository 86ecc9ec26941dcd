"""Workers on nodes: what a host may say to the proxy."""

from __future__ import annotations

import asyncio

import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.reward.hosts import HostedWorkers, HostLine
from plexsvc.reward.messages import Ready
from tests.rigs.keys import KEYS


async def test_a_host_that_says_what_no_host_says_loses_its_line_alone() -> None:
    workers = HostedWorkers(lambda *_: None, keys=KEYS, clock=SystemClock(), told=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        line = HostLine(pb.HostFacts(), tasks.create_task(asyncio.sleep(0)))
    with pytest.raises(ValueError, match="a Ready"):  # what ends the line, and is told
        workers._hear(line, Ready("none"))

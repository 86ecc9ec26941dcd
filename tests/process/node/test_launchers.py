"""The contract of every launcher of node agents, on real ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import cast

import pytest

from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.node.config import DeviceConfig
from plexsvc.node.join import PoolConfig
from plexsvc.node.launchers.launcher import Host, Launcher
from plexsvc.node.launchers.local import LocalLauncher
from plexsvc.node.launchers.ray import RayConfig, RayLauncher
from plexsvc.rpc.channels import open_channel
from tests.process.node.conftest import agent_config
from tests.rigs.keys import KEYS, signed
from tests.rigs.ray_cluster import PYTHON, RayCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

WAIT_S = 120
NewLauncher = Callable[[], AbstractAsyncContextManager[Launcher]]


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        cluster.add("node-a", pool="rewards")
        yield cluster


@pytest.fixture(params=["local", "ray"])
def new_launcher(tmp_path: Path, request: pytest.FixtureRequest) -> NewLauncher:
    """Make the launcher of a cluster with one node; each next one succeeds the one before."""
    if request.param == "local":
        config = agent_config(tmp_path)
        return lambda: LocalLauncher([config], clock=SystemClock(), adopts=True)
    cluster: RayCluster = request.getfixturevalue("ray")
    rewards = DeviceConfig(kind="reward", cpus=1, bytes_total=1 << 30)
    pool = PoolConfig(devices=(rewards,), host_bytes=1 << 20, staging_bytes=1 << 20)
    on_ray = RayConfig(
        address=cluster.address,
        python=str(PYTHON),
        directory=cluster.nodes_directory,
        pools={"rewards": pool},
    )
    return lambda: RayLauncher(
        on_ray,
        keys=KEYS,
        roots=(),
        place=tmp_path / "ray",
        clock=SystemClock(),
    )


async def served(launcher: Launcher, *, besides: int = 0) -> Host:
    """Return the only host once it has an agent, another than the process `besides`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for host in launcher.hosts.values():
                if host.request:
                    launcher.admit(host.node_id, signed(host.request))
                if host.address and host.pid != besides:
                    return host
            launcher.changed.clear()
            await launcher.changed.wait()


async def described(host: Host) -> str:
    async with open_channel(host.address, KEYS) as channel:
        stub = node_pb2_grpc.NodeStub(channel)
        found = await stub.Describe(node_pb2.NodeDescribeRequest(), timeout=WAIT_S)
    return str(found.node_id)


async def gone(pid: int) -> None:
    """Return when a process is no more."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(WAIT_S):
                await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


async def test_the_agent_serves_where_it_is_said_and_ends_with_the_launcher(
    new_launcher: NewLauncher,
) -> None:
    async with new_launcher() as launcher:
        host = await served(launcher)
        assert await described(host) == host.node_id
    await gone(host.pid)


async def test_an_agent_that_was_killed_has_a_successor_at_its_address(
    new_launcher: NewLauncher,
) -> None:
    async with new_launcher() as launcher:
        first = await served(launcher)
        os.kill(first.pid, signal.SIGKILL)
        second = await served(launcher, besides=first.pid)
        assert second.address == first.address
        assert await described(second) == first.node_id


async def test_an_agent_that_is_left_is_adopted_by_the_next_launcher(
    new_launcher: NewLauncher,
) -> None:
    async with new_launcher() as launcher:
        left = await served(launcher)
        launcher.leaves = True
    async with new_launcher() as launcher:
        assert await served(launcher) == left
        assert await described(left) == left.node_id
    await gone(left.pid)


@pytest.mark.parametrize("new_launcher", ["ray"], indirect=True)
async def test_a_node_that_another_cluster_has_gets_no_agent_of_this_one(
    new_launcher: NewLauncher, tmp_path: Path
) -> None:
    other = cast("RayLauncher", new_launcher())
    other._settings["cluster"] = "other"
    other._place = tmp_path / "other"
    async with new_launcher() as launcher:
        first = await served(launcher)
        async with other:
            async with asyncio.timeout(WAIT_S):
                while "has this node" not in "".join(h.problem for h in other.hosts.values()):
                    other.changed.clear()
                    await other.changed.wait()
            assert not any(host.address for host in other.hosts.values())
            other.leaves = True
        assert await described(first) == first.node_id

"""Addresses that servers listen at, and directories that are too open for a socket."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from plexclient.wire.channels import CHANNEL_OPTIONS
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import services
from plexsvc.rpc.channels import (
    MAX_UNACCEPTED,
    SERVER_OPTIONS,
    listen,
    new_server,
    open_blocking_channel,
    open_channel,
)
from tests.rigs.keys import FOREIGN, KEYS

NODE = node_pb2.DESCRIPTOR.services_by_name["Node"]


async def describe(_: node_pb2.NodeDescribeRequest, _context: object) -> node_pb2.NodeDescription:
    return node_pb2.NodeDescription(node_id="n0")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory that others may enter; nothing is made in it."""
    tmp_path.chmod(0o755)
    yield tmp_path
    assert not list(tmp_path.iterdir())


def test_a_peer_that_falls_silent_is_noticed_in_five_seconds() -> None:
    found = dict(CHANNEL_OPTIONS)
    times = [found[f"grpc.{name}_ms"] for name in ("keepalive_time", "keepalive_timeout")]
    assert sum(map(int, times)) <= 5000
    assert found["grpc.http2.ping_timeout_ms"] == times[1]  # the shorter counts
    allowed = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(allowed) < int(times[0]), "else servers hang up on who pings so often"


@pytest.mark.parametrize("where", ["127.0.0.1:0", "unix:{}/n.sock"])
async def test_members_reach_a_socket_and_a_port_alike(tmp_path: Path, where: str) -> None:
    server = new_server(KEYS)
    services.add_service(server, NODE, calls={"Describe": describe})
    address = listen(server, where.format(tmp_path), KEYS, key="listen")
    await server.start()
    method, request = NODE.methods_by_name["Describe"], node_pb2.NodeDescribeRequest()
    async with open_channel(address, KEYS) as channel:
        reply = await services.call(
            channel, method, request, node_pb2.NodeDescription, timeout_s=60
        )
    assert reply.node_id == "n0"
    async with open_channel(address, FOREIGN) as channel:
        with pytest.raises(PlexError):
            await services.call(channel, method, request, node_pb2.NodeDescription, timeout_s=60)
    if address.startswith("unix:"):
        assert mode_of(tmp_path / "n.sock") == 0o600
    with open_blocking_channel(address, KEYS) as blocking:
        stub = node_pb2_grpc.NodeStub(blocking)
        reply = await asyncio.to_thread(stub.Describe, request, timeout=120)
    await server.stop(0)
    assert reply.node_id == "n0"


async def test_who_connects_faster_than_connections_are_accepted_waits() -> None:
    server = new_server(KEYS)  # it is not started: nobody is accepted
    host, _, port = listen(server, "127.0.0.1:0", KEYS, key="listen").rpartition(":")
    with ExitStack() as stack:

        def connect() -> bool:
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect((host, int(port)))
            return bool(select.select([], [one], [], 0.5)[1])

        connected = [connect() for _ in range(MAX_UNACCEPTED + 2)]
    await server.stop(0)
    assert connected == [True] * (MAX_UNACCEPTED + 1) + [False], "the kernel counts from 0"


async def test_a_socket_in_a_directory_of_others_is_refused(open_directory: Path) -> None:
    server = new_server(KEYS)
    with pytest.raises(PlexError, match="mode 755") as refused:
        listen(server, f"unix:{open_directory}/n.sock", KEYS, key="listen")
    assert refused.value.code is ErrorCode.BAD_REQUEST
    await server.stop(0)


async def test_an_address_of_nobody_is_refused_by_its_keys_name() -> None:
    server = new_server(KEYS)
    with pytest.raises(PlexError, match=re.escape("node.listen = '999.1.1.1:1'")):
        listen(server, "999.1.1.1:1", KEYS, key="node.listen")
    await server.stop(0)

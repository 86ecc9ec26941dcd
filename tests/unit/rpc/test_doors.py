"""The door of every service: who has no right is refused before anything is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from plexclient.failures import error_of
from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode
from plexsvc.router.auth import Tenants
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.doors import Door
from plexsvc.rpc.keys import ClusterKeys
from tests.rigs.keys import FOREIGN, KEYS
from tests.rigs.strangers import CALL_S, METHODS, SERVICES, Metadata, call, members_secrets, refusal

TENANTS = Tenants({"token": "lab"})

STRANGERS = {**members_secrets(KEYS), "a tenant's token": (("authorization", "Bearer token"),)}
NO_TENANTS: dict[str, Metadata] = {
    "nothing": (),
    "no scheme": (("authorization", "token"),),
    "a wrong token": (("authorization", "Bearer tokem"),),
    "a member's secret": KEYS.metadata,
}


@asynccontextmanager
async def served(door: Door, reached: list[str]) -> AsyncIterator[grpc.aio.Channel]:
    """Serve every method by one that notes that it was reached; yield a channel without keys."""
    server = new_server(door)
    for service in SERVICES.values():
        handlers = {method.name: _noting(method, reached) for method in service.methods}
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", None) as channel:
        yield channel
    await server.stop(0)


def _noting(method: MethodDescriptor, reached: list[str]) -> Any:
    def decode(data: bytes) -> bytes:
        reached.append(f"decoded {method.full_name}")
        return data

    async def answer(_: object, _context: object) -> bytes:
        reached.append(method.full_name)
        return b""

    async def stream(_: object, _context: object) -> AsyncIterator[bytes]:
        reached.append(method.full_name)
        yield b""

    kind = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    return kind(stream if method.server_streaming else answer, request_deserializer=decode)


async def ask(channel: grpc.aio.Channel, path: str, data: bytes = b"") -> None:
    method: Any = channel.unary_unary(path)
    await method(data, timeout=CALL_S)


@pytest.mark.parametrize(
    ("door", "strangers"), [(KEYS, STRANGERS), (TENANTS, NO_TENANTS)], ids=["member", "tenant"]
)
async def test_a_caller_without_a_right_reaches_no_method_of_any_service(
    door: Door, strangers: dict[str, Metadata]
) -> None:
    reached: list[str] = []
    async with served(door, reached) as channel:
        for service, method in METHODS:
            for who, metadata in strangers.items():
                error = await refusal(channel, service, method, metadata)
                assert error.code is ErrorCode.UNAUTHENTICATED, (who, method.full_name)
    assert reached == []
    assert len(METHODS) > 60


async def test_a_member_reaches_every_method() -> None:
    reached: list[str] = []
    async with served(KEYS, reached) as channel:
        for service, method in METHODS:
            await call(channel, service, method, KEYS.metadata)
    assert {name for name in reached if " " not in name} == {m.full_name for _, m in METHODS}


async def test_bytes_that_are_no_request_are_a_bad_request_and_cost_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = new_server(KEYS)

    async def renew(_: object, _context: object) -> node_pb2.RenewReply:
        raise AssertionError("never called")

    handler: Any = grpc.unary_unary_rpc_method_handler(renew, node_pb2.RenewRequest.FromString)
    generic = grpc.method_handlers_generic_handler("plexsvc.v1.Node", {"Renew": handler})
    server.add_generic_rpc_handlers((generic,))
    address = listen(server, "127.0.0.1:0", KEYS, key="test")
    await server.start()
    async with open_channel(address, KEYS) as channel:
        for _ in range(50):
            with pytest.raises(grpc.RpcError) as refused:
                await ask(channel, "/plexsvc.v1.Node/Renew", b"\xff" * 9)
            assert error_of(refused.value, text="").code is ErrorCode.BAD_REQUEST
    await server.stop(0)
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(lines) <= 20
    assert all(not record.exc_info for record in lines)


async def test_between_hosts_who_lacks_the_certificate_gets_no_connection() -> None:
    reached: list[str] = []
    server = new_server(KEYS)
    service = node_pb2.DESCRIPTOR.services_by_name["Node"]
    method = service.methods_by_name["Describe"]
    handlers = {"Describe": _noting(method, reached)}
    generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))
    address = listen(server, "127.0.0.1:0", KEYS, key="test")
    await server.start()
    stolen = ClusterKeys(
        secret=KEYS.secret, certificate=FOREIGN.certificate, private_key=FOREIGN.private_key
    )
    for keys in (None, FOREIGN, stolen):
        async with open_channel(address, keys) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                await ask(channel, "/plexsvc.v1.Node/Describe")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reached == []
    async with open_channel(address, KEYS) as channel:
        await ask(channel, "/plexsvc.v1.Node/Describe")
    assert reached[-1] == method.full_name
    await server.stop(0)


async def test_calls_and_connections_beyond_their_bounds_are_refused_others_served() -> None:
    gate = asyncio.Event()

    async def wait(_: object, _context: object) -> bytes:
        await gate.wait()
        return b""

    server = new_server(KEYS, max_calls=2, max_connections=3)
    handlers: Any = {"Describe": grpc.unary_unary_rpc_method_handler(wait)}
    generic = grpc.method_handlers_generic_handler("plexsvc.v1.Node", handlers)
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels: list[Any] = [
        grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(6)
    ]
    calls: list[Any] = [
        channel.unary_unary("/plexsvc.v1.Node/Describe")(
            b"", metadata=KEYS.metadata, timeout=CALL_S
        )
        for channel in channels
    ]
    ended: list[grpc.StatusCode] = []
    for code in asyncio.as_completed([made.code() for made in calls]):
        ended.append(await code)
        if len(ended) == 4:
            gate.set()
    refused = [grpc.StatusCode.RESOURCE_EXHAUSTED] + [grpc.StatusCode.UNAVAILABLE] * 3
    assert sorted(code.name for code in ended[:4]) == [code.name for code in refused]
    assert ended[4:] == [grpc.StatusCode.OK] * 2
    for channel in channels:
        await channel.close()
    await server.stop(0)

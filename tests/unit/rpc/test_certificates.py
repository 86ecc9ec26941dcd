"""Certificates of nodes: what is asked for is what is signed, and one node is refused alone."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from plexclient.failures import error_of
from plexclient.wire.v1 import node_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import certificates, services
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.keys import SHUT_OUT, ClusterKeys, write_shut_out
from tests.rigs.keys import FOREIGN, KEYS, member
from tests.rigs.strangers import CALL_S, METHODS, SERVICES, call, refusal

NOW_US = SystemClock().wall_us()
DAY_US = 86_400_000_000
ALL = [method.name for _, method in METHODS]


def test_a_certificate_has_the_name_and_the_key_that_were_asked_for() -> None:
    private = certificates.new_key()
    request = certificates.request_for(private, node_id="n1")
    assert private not in request
    node_id, key = certificates.requested(request)
    signed = [sign(request), sign(request)]
    facts = [certificates.read(one) for one in signed]
    assert node_id == facts[0].node_id == facts[1].node_id == "n1"
    assert facts[0].serial != facts[1].serial
    assert key == certificates.requested(certificates.request_for(private, node_id="n2"))[1]


def sign(request: str, **others: Any) -> str:
    return certificates.sign(
        request,
        authority=KEYS.certificate,
        private_key=KEYS.private_key,
        now_us=NOW_US,
        **others,
    )


@pytest.mark.parametrize("cut", [0, 40, -60])
def test_what_is_no_request_is_refused(cut: int) -> None:
    request = certificates.request_for(certificates.new_key(), node_id="n")[:cut]
    with pytest.raises(PlexError, match="cannot be read") as refused:
        certificates.requested(request)
    assert refused.value.code is ErrorCode.BAD_REQUEST


async def test_between_hosts_a_member_reaches_every_method_without_a_secret(tmp_path: Path) -> None:
    reached: list[str] = []
    server, address = await serving(replace(KEYS, file=tmp_path / "keys.json"), reached)
    async with open_channel(address, member("n1")) as channel:
        for service, method in METHODS:
            await call(channel, service, method, ())
    await server.stop(0)
    assert set(reached) == {method.full_name for _, method in METHODS}


async def test_where_the_service_calls_a_node_reaches_no_method() -> None:
    reached: list[str] = []
    server, address = await serving(KEYS, reached, takes_nodes=())
    async with open_channel(address, member("n1")) as channel:
        for service, method in METHODS:
            error = await refusal(channel, service, method, ())
            assert error.code is ErrorCode.FORBIDDEN, method.full_name
            assert "node 'n1' may read versions" in error.message
    assert reached == []
    async with open_channel(address, KEYS) as channel:
        await ask(channel)
    await server.stop(0)


async def test_a_node_reaches_the_methods_that_are_for_nodes_alone() -> None:
    reached: list[str] = []
    server, address = await serving(KEYS, reached, takes_nodes=("GetManifest", "Inventory"))
    async with open_channel(address, member("n1")) as channel:
        for service, method in METHODS:
            with suppress(grpc.RpcError, PlexError):
                await call(channel, service, method, ())
    await server.stop(0)
    assert {name.rpartition(".")[2] for name in reached} == {"GetManifest", "Inventory"}


async def test_who_is_foreign_expired_or_shut_out_reaches_nothing_anywhere(tmp_path: Path) -> None:
    reached: list[str] = []
    out, goes_on = member("out"), member("n1")
    server, address = await serving(replace(KEYS, file=tmp_path / "keys.json"), reached)
    async with open_channel(address, out) as channel, open_channel(address, goes_on) as other:
        await ask(channel)
        reached.clear()
        write_shut_out(tmp_path / SHUT_OUT, [certificates.read(out.certificate).serial])
        for service, method in METHODS:  # on a connection that it had
            error = await refusal(channel, service, method, ())
            assert error.code is ErrorCode.UNAUTHENTICATED, method.full_name
            assert "node 'out' was shut out" in error.message
        assert reached == []
        await ask(other)
    reached.clear()
    forged = replace(
        FOREIGN, certificate=signed_by(FOREIGN, "n1"), authority=KEYS.root, secret=KEYS.secret
    )
    strangers = {
        "no certificate": None,
        "another cluster's": member("n1", of=FOREIGN),
        "signed by another cluster": forged,
        "expired": member("n1", valid_us=-DAY_US),
        "another's key": replace(goes_on, private_key=out.private_key),
        "a node that signs": replace(out, certificate=signed_by(goes_on, "n2")),
    }
    for who, keys in strangers.items():
        async with open_channel(address, keys) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                await ask(channel)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, who
    async with open_channel(address, out) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            await ask(channel)
        assert error_of(refused.value, text="").code is ErrorCode.UNAUTHENTICATED
    await server.stop(0)
    assert reached == []


def test_a_certificate_that_ends_while_it_is_connected_is_refused() -> None:
    ended = member("n1", valid_us=-DAY_US).certificate
    refused = KEYS.refusal_of_certificate(ended)
    assert refused is not None
    assert "expired" in refused.message


def signed_by(signer: ClusterKeys, node_id: str) -> str:
    request = certificates.request_for(certificates.new_key(), node_id=node_id)
    return certificates.sign(
        request, authority=signer.certificate, private_key=signer.private_key, now_us=NOW_US
    )


async def serving(
    keys: ClusterKeys, reached: list[str], *, takes_nodes: Collection[str] = ALL
) -> tuple[grpc.aio.Server, str]:
    server = new_server(keys, takes_nodes=takes_nodes)
    for service in SERVICES.values():
        handlers = {method.name: noting(method, reached) for method in service.methods}
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))
    address = listen(server, "127.0.0.1:0", keys, key="test")
    await server.start()
    return server, address


def noting(method: MethodDescriptor, reached: list[str]) -> Any:
    async def answer(_: object, _context: object) -> bytes:
        reached.append(method.full_name)
        return b""

    async def stream(_: object, _context: object) -> Any:
        reached.append(method.full_name)
        yield b""

    kind = services._KINDS[method.client_streaming, method.server_streaming]
    return kind(stream if method.server_streaming else answer)


async def ask(channel: grpc.aio.Channel) -> None:
    describe: Any = channel.unary_unary(f"/{node_pb2.DESCRIPTOR.package}.Node/Describe")
    await describe(b"", timeout=CALL_S)

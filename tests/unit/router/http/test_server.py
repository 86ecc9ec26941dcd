"""The HTTP server: who is let in, what is bounded, and how errors are told."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http import server
from plexsvc.router.http.server import TENANT, read_json, serving

TENANTS = Tenants({"secret": "acme"})
HEADERS = {"Authorization": "Bearer secret"}


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"tenant": request[TENANT], "got": await read_json(request)})


async def full(_: web.Request) -> web.Response:
    raise PlexError(ErrorCode.QUEUE_FULL, "too many", limit=3)


async def broken(_: web.Request) -> web.Response:
    raise KeyError("a bug")


ROUTES = [web.post("/echo", echo), web.post("/full", full), web.post("/broken", broken)]


@asynccontextmanager
async def served(*, max_connections: int = 8) -> AsyncIterator[str]:
    config = RouterConfig(http_listen="127.0.0.1:0", max_connections=max_connections)
    async with serving(ROUTES, tenants=TENANTS, config=config) as address:
        yield address


@asynccontextmanager
async def client(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{address}") as session:
        yield session


async def test_a_tenant_is_known_by_its_token() -> None:
    async with (
        served() as address,
        client(address) as http,
        http.post("/echo", json={"a": 1}, headers=HEADERS) as reply,
    ):
        assert (reply.status, await reply.json()) == (200, {"tenant": "acme", "got": {"a": 1}})


async def test_escaped_text_is_taken_whole() -> None:
    async with (
        served() as address,
        client(address) as http,
        http.post("/echo", data=rb'{"a": "\ud83e\udd84 \\ud800"}', headers=HEADERS) as reply,
    ):
        assert (await reply.json())["got"] == {"a": "\N{UNICORN FACE} \\ud800"}


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": "secret"}]
)
async def test_nobody_else_gets_in_whatever_he_asks_for(headers: dict[str, str]) -> None:
    async with served() as address, client(address) as http:
        for path in ("/echo", "/nowhere"):
            async with http.post(path, data=b"no json", headers=headers) as reply:
                assert reply.status == 401
                assert (await reply.json())["error"]["code"] == "unauthenticated"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/echo", b"{", 400, "bad_request"),
        ("/echo", b"[]", 400, "bad_request"),
        ("/echo", b"\xff", 400, "bad_request"),
        ("/echo", b'{"a":' + b"[" * 200_000, 400, "bad_request"),
        ("/echo", rb'{"a": ["\ud800"]}', 400, "bad_request"),
        ("/echo", rb'{"\uDC00": 1}', 400, "bad_request"),
        ("/echo", bytes(MAX_MESSAGE_BYTES + 1), 413, "payload_too_large"),
        ("/nowhere", b"{}", 404, "not_found"),
        ("/full", b"{}", 429, "queue_full"),
        ("/broken", b"{}", 500, "internal"),
    ],
)
async def test_errors_are_told_as_json(path: str, body: bytes, status: int, code: str) -> None:
    async with (
        served() as address,
        client(address) as http,
        http.post(path, data=io.BytesIO(body), headers=HEADERS) as reply,
    ):
        assert reply.status == status
        error = (await reply.json())["error"]
    assert (error["code"], error["type"]) == (code, code)
    assert error["message"]


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(120):
        return await reader.read()


async def test_who_sends_no_request_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.05)
    async with served() as address, connected(address) as one, connected(address) as other:
        (silent, _), (slow, writer) = one, other
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\n")
        assert await closed(silent) == b""
        assert await closed(slow) == b""


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.05)
    async with served() as address, connected(address) as (reader, writer):
        head = "POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        writer.write(f"{head}Content-Length: 10\r\nConnection: close\r\n\r\n".encode())
        assert (await closed(reader)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX-Session-Id: " + b"s" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_and_fills_no_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as address, connected(address) as (reader, writer):
        writer.write(sent)
        assert b" 400 Bad Request" in await closed(reader)
    assert not caplog.records


@pytest.mark.parametrize(
    ("more", "body"),
    [
        (b"Content-Type: application/json; charset=foo\r\n", b"{}"),
        (b"Content-Type: application/json; charset=punycode\r\n", b"{}"),
        (b"Content-Type: application/json; charset=utf-16\r\n", b"{}x"),
        (b"Content-Encoding: gzip\r\n", b"abcd"),
        (b"", b"\xff\xfe"),
    ],
)
async def test_a_body_that_cannot_be_read_is_its_senders_fault_and_fills_no_log(
    more: bytes, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        b"POST /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\nConnection: close\r\n"
    )
    async with served() as address, connected(address) as (reader, writer):
        writer.write(head + more + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert b"400 Bad Request" in await closed(reader)
    assert not caplog.records


async def test_no_body_is_read_by_an_encoding_that_takes_minutes() -> None:
    headers = HEADERS | {"Content-Type": "application/json; charset=punycode"}
    body = b"-" + b"a" * 1_000_000
    async with (
        asyncio.timeout(120),
        served() as address,
        client(address) as http,
        http.post("/echo", data=body, headers=headers) as reply,
    ):
        assert (reply.status, "utf-8" in await reply.text()) == (400, True)


async def test_a_connection_beyond_the_bound_is_closed() -> None:
    async with served(max_connections=1) as address, connected(address) as (_, first):
        first.write(b"POST /echo HTTP/1.1\r\n")
        await first.drain()
        async with connected(address) as (second, _):
            assert await closed(second) == b""


async def test_nothing_is_served_without_an_address() -> None:
    async with serving(ROUTES, tenants=TENANTS, config=RouterConfig()) as address:
        assert address == ""


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", "256.0.0.1:0"])
async def test_an_address_that_is_none_is_refused(listen: str) -> None:
    config = RouterConfig(http_listen=listen)
    with pytest.raises(PlexError, match=r"router\.http_listen"):
        async with serving(ROUTES, tenants=TENANTS, config=config):
            pass


async def test_a_token_that_may_only_read_gets_and_posts_nothing() -> None:
    secret = "tok-1.secret"
    view = pb.TokenView(token_id="tok-1", owner="acme", scope="read")
    view.hash = sha256(secret.encode()).digest()
    tenants = Tenants({})
    tenants.learn(pb.WatchTokensReply(revision=1, tokens=[view]))
    reached: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        reached.append(f"{request.method} {request[TENANT]}")
        return web.Response()

    routes = [web.get("/x", handle), web.post("/x", handle)]
    config = RouterConfig(http_listen="127.0.0.1:0")
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        serving(routes, tenants=tenants, config=config) as address,
        aiohttp.ClientSession(f"http://{address}", headers=headers) as http,
    ):
        async with http.get("/x") as got:
            assert got.status == 200
        async with http.post("/x", json={}) as refused:
            assert refused.status == 403
            assert "may only read, and POST /x does more" in await refused.text()
    assert reached == ["GET acme"]

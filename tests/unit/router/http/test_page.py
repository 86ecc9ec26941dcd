"""The page's files and what they ask: who is let in, what is refused, and what events tell."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError, unavailable
from plexsvc.router.auth import Caller, Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http import page, server
from plexsvc.router.http.server import serving
from plexsvc.rpc.services import to_dict
from tests.rigs.router_rig import start_rig

HEADERS = {"Authorization": "Bearer secret"}


class Asked:
    """A service that answers with what a test gave it, and remembers who asked for what."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Message | PlexError]] = {}
        self.calls: list[tuple[str, Message, str]] = []

    async def __call__(self, name: str, request: Message, caller: Caller) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        self.calls.append((name, copy, caller.tenant))
        given = self.answers[name]
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, PlexError):
            raise answer
        return answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


@asynccontextmanager
async def http(asked: Asked, tenants: Tenants | None = None) -> AsyncIterator[Any]:
    tenants = tenants or Tenants({"secret": "acme"})
    config = RouterConfig(http_listen="127.0.0.1:0")
    routes = page.routes(asked)
    async with (
        serving(routes, tenants=tenants, config=config, files=page.files()) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        yield session


async def event(reply: Any) -> tuple[str, Any]:
    name = (await reply.content.readline()).decode().removeprefix("event: ").strip()
    data = (await reply.content.readline()).decode().removeprefix("data: ")
    await reply.content.readline()
    return name, json.loads(data)


async def test_files_need_no_token_run_nothing_foreign_and_are_sent_once(asked: Asked) -> None:
    async with http(asked) as session:
        for path in page.FILES:
            async with session.get(path) as reply:
                assert reply.status == 200, path
                policy, tag = reply.headers["Content-Security-Policy"], reply.headers["ETag"]
                text = await reply.text()
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            if "uplot" not in path:
                assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}
            async with session.get(path, headers={"If-None-Match": tag}) as reply:
                assert (reply.status, await reply.read()) == (304, b"")
    assert asked.calls == []


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}])
async def test_who_has_no_token_learns_nothing(asked: Asked, headers: dict[str, str]) -> None:
    async with http(asked) as session:
        for path in ("/page/look/status", "/page/events?views=status", "/page/nothing"):
            async with session.get(path, headers=headers) as reply:
                assert (reply.status, (await reply.json())["error"]["code"]) == (
                    401,
                    "unauthenticated",
                )
        async with session.post("/", headers=headers) as reply:
            assert reply.status == 401
    assert asked.calls == []


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/page/look/secrets", 404, "no view 'secrets'"),
        ("/page/events?views=status,secrets", 404, "no view 'secrets'"),
        ("/page/events", 404, "no view ''"),
        ("/page/look/cost?color=red", 400, "color"),
        ("/page/look/cost?since_us=yesterday", 400, "since_us"),
        ("/page/events?views=timeline&after=-1", 400, "after_index"),
    ],
)
async def test_what_the_page_does_not_show_is_refused(
    asked: Asked, path: str, status: int, said: str
) -> None:
    async with http(asked) as session, session.get(path, headers=HEADERS) as reply:
        assert reply.status == status
        assert said in (await reply.json())["error"]["message"]
    assert asked.calls == []


async def test_a_look_is_what_the_cli_prints_as_json(asked: Asked) -> None:
    asked.answers["GetCost"] = [pb.CostReply(now_us=7, costs=[pb.Cost(job_id="job-1", tokens=3)])]
    async with (
        http(asked) as session,
        session.get("/page/look/cost?job_id=job-1&since_us=5", headers=HEADERS) as reply,
    ):
        found = await reply.json()
    assert (found["now_us"], found["costs"][0]["tokens"]) == ("7", "3")
    assert found["costs"][0]["switch_us"] == "0", "every field is there"
    assert asked.calls == [("GetCost", pb.CostRequest(job_id="job-1", since_us=5), "acme")]


async def test_events_go_on_a_timeline_where_it_was_and_tell_what_does_not_answer(
    asked: Asked,
) -> None:
    span = pb.Span(index=8, node_id="a", device=1, kind="step", deployment_id="job-1/actor")
    asked.answers["Timeline"] = [
        pb.TimelineReply(spans=[span], next_index=8),
        pb.TimelineReply(next_index=8),
    ]
    asked.answers["GetRewards"] = [unavailable("no proxy")]
    async with (
        http(asked) as session,
        session.get("/page/events?views=timeline,rewards&after=5", headers=HEADERS) as reply,
    ):
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        told = [await event(reply) for _ in range(4)]
    assert told[0] == (
        "timeline",
        {"next": 8, "rows": [["a:1", "step", "job-1/actor", 0, 0, 0, ""]]},
    )
    assert told[1][0] == "rewards"
    assert told[1][1]["error"]["message"] == "no proxy"
    assert told[2] == ("timeline", {"next": 8, "rows": []})
    asks = [call[1] for call in asked.calls if call[0] == "Timeline"]
    assert asks[:2] == [pb.TimelineRequest(after_index=5), pb.TimelineRequest(after_index=8)]


async def test_an_open_page_ends_with_its_token(asked: Asked) -> None:
    tenants = Tenants({})
    secret = "tok-1.secret"
    view = pb.TokenView(
        token_id="tok-1", owner="acme", scope="read", hash=sha256(secret.encode()).digest()
    )
    tenants.learn(pb.WatchTokensReply(revision=1, tokens=[view]))
    asked.answers["GetStatus"] = [pb.ClusterStatus(now_us=1)]
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        http(asked, tenants) as session,
        session.get("/page/events?views=status", headers=headers) as reply,
    ):
        assert (await event(reply))[0] == "status"
        view.revoked_us = 1
        tenants.learn(pb.WatchTokensReply(revision=2, tokens=[view]))
        name, told = await event(reply)
        assert (name, told["error"]["code"]) == ("end", "unauthenticated")
        assert await reply.content.read() == b""


async def test_an_open_page_does_not_hold_the_server(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_S", 3600.0)
    asked.answers["GetStatus"] = [pb.ClusterStatus()]
    config = RouterConfig(http_listen="127.0.0.1:0")
    tenants = Tenants({"secret": "acme"})
    async with aiohttp.ClientSession(headers=HEADERS) as session, asyncio.timeout(120):
        async with serving(page.routes(asked), tenants=tenants, config=config) as address:
            reply = await session.get(f"http://{address}/page/events?views=status")
            await event(reply)
        while await reply.content.readline():
            pass


async def test_pages_are_bounded(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_PAGES", 1)
    asked.answers["GetStatus"] = [pb.ClusterStatus()]
    path = "/page/events?views=status"
    async with http(asked) as session, session.get(path, headers=HEADERS) as first:
        await event(first)
        async with session.get(path, headers=HEADERS) as second:
            told = await second.json()
            assert (second.status, told["error"]["code"]) == (429, ErrorCode.QUEUE_FULL)


async def test_a_caller_is_who_its_token_says_whatever_it_asks() -> None:
    config = RouterConfig(
        tokens={"secret": "acme", "other": "rival"}, http_listen="127.0.0.1:0", operators=("ops",)
    )
    async with (
        start_rig(config=config) as rig,
        rig.router.http() as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):

        async def look(token: str, query: str) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"/page/look/{query}", headers=headers) as reply:
                return reply.status, await reply.json()

        status, told = await look("secret", "explain?job_id=job-1")
        assert (status, told["text"]) == (200, "it waits for nothing")
        status, told = await look("other", "explain?job_id=job-1&tenant=acme")
        assert (status, told["error"]["code"]) == (404, "not_found")
        status, told = await look("secret", "explain?job_id=job-2")
        assert (status, told["error"]["message"]) == (404, "no job 'job-2'")
        assert (await look("other", "status?tenant=acme"))[1]["jobs"] == []
        assert len((await look("secret", "status"))[1]["jobs"]) == 1


async def test_texts_are_made_beside_the_loop(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noting(message: Message) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return to_dict(message)

    monkeypatch.setattr(page, "to_dict", noting)
    asked.answers["GetStatus"] = [pb.ClusterStatus()]
    async with http(asked) as session:
        async with session.get("/page/look/status", headers=HEADERS) as reply:
            await reply.read()
        async with session.get("/page/events?views=status", headers=HEADERS) as reply:
            await event(reply)
    assert len(threads) >= 2
    assert threading.main_thread() not in threads

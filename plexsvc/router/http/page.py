"""A page to look at a cluster with: its files, and what they ask as JSON and as events.

The files say nothing of the cluster and need no token. Everything else is the reply of a method of
the Router that only reads, with what the CLI shows to the caller's token. Text is made on a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from aiohttp import web
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from plexclient.wire.v1 import reward_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import PlexError, bad_request, not_found
from plexsvc.router.http.server import CALLER, STOPPING, Ask, error_of
from plexsvc.rpc.services import to_dict
from plexsvc.slots import Limit, Slots

FOLDER: Final = Path(__file__).parent / "static"
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/views.js": ("views.js", "text/javascript"),
    "/page/gantt.js": ("gantt.js", "text/javascript"),
    "/page/uplot.js": ("uplot/uPlot.iife.min.js", "text/javascript"),
    "/page/uplot.css": ("uplot/uPlot.min.css", "text/css"),
}
"""Files by path, with their types."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, by its digest
}

VIEWS: Final[Mapping[str, tuple[str, type[Message]]]] = {
    "status": ("GetStatus", pb.GetStatusRequest),
    "timeline": ("Timeline", pb.TimelineRequest),
    "pack": ("GetPack", pb.PackRequest),
    "explain": ("ExplainOperation", pb.ExplainRequest),
    "report": ("GetReport", pb.ReportRequest),
    "cost": ("GetCost", pb.CostRequest),
    "nodes": ("ListNodes", pb.ListNodesRequest),
    "instances": ("ListInstances", pb.ListInstancesRequest),
    "rewards": ("GetRewards", reward_pb2.GetRewardsRequest),
}
"""Methods by the names that the page has for them."""

PERIOD_S: Final = 1.0
"""Between two looks of a page that is open."""
WRITE_S: Final = 60.0
"""How long a page may take to read an event."""
MAX_PAGES: Final = 64
"""Pages that may be open at one router."""


def files() -> list[web.RouteDef]:
    """Return the routes that need no token."""
    return [web.get(path, _sends(*of)) for path, of in FILES.items()]


def _sends(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def send(request: web.Request) -> web.Response:
        body, tag = _read(name)
        is_known = any(one.value == tag for one in request.if_none_match or ())
        response = web.Response(status=304) if is_known else web.Response(body=body)
        response.content_type, response.charset, response.etag = kind, "utf-8", tag
        response.headers.update(HEADERS)
        return response

    return send


@cache
def _read(name: str) -> tuple[bytes, str]:
    """Return a file and its digest."""
    body = (FOLDER / name).read_bytes()
    return body, sha256(body).hexdigest()[:16]


def routes(ask: Ask) -> list[web.RouteDef]:
    """Return the routes that do: one reply, and replies for as long as a page is open."""
    pages = Slots(Limit(total=MAX_PAGES, what="open pages", key="of one router"))

    async def look(request: web.Request) -> web.Response:
        reply = await ask(*_asked(request.match_info["view"], request.query), request[CALLER])
        body = await asyncio.to_thread(lambda: json.dumps(to_dict(reply)))
        headers = {"Cache-Control": "no-store"}
        return web.Response(text=body, content_type="application/json", headers=headers)

    async def events(request: web.Request) -> web.StreamResponse:
        # A page that lost its line goes on behind the row that it has.
        goes_on = {"timeline": {"after_index": request.query.get("after", "0")}}
        names = dict.fromkeys(request.query.get("views", "").split(","))
        views = [(name, _asked(name, goes_on.get(name, {}))[1]) for name in names]
        with pages.hold(request[CALLER].tenant):
            response = web.StreamResponse(headers={"Cache-Control": "no-store"})
            response.content_type = "text/event-stream"
            await response.prepare(request)
            try:
                async with request[CALLER].valid():
                    await _tell(request, response, views, ask=ask)
            except PlexError as error:  # the token ended
                await _write(response, _event("end", error_of(error)))
            except (ConnectionError, TimeoutError):  # it left, or does not read
                request.protocol.force_close()
            return response

    return [web.get("/page/look/{view}", look), web.get("/page/events", events)]


def _asked(view: str, fields: Mapping[str, str]) -> tuple[str, Message]:
    """Return the method of a view, and a request with these fields.

    Raises:
        PlexError: `not_found`, or `bad_request` for fields that it has not.
    """
    if view not in VIEWS:
        raise not_found(f"the page has no view {view!r:.40}; it has {', '.join(VIEWS)}")
    method, make = VIEWS[view]
    try:
        return method, ParseDict(dict(fields), make())
    except ParseError as error:
        raise bad_request(f"view {view!r} was asked for with fields it has not: {error}") from error


async def _tell(
    request: web.Request,
    response: web.StreamResponse,
    views: list[tuple[str, Message]],
    *,
    ask: Ask,
) -> None:
    """Send what each view shows until the server stops; a timeline goes on where it was.

    A part of the service that does not answer is told in its view's place.
    """
    stopping = request.app[STOPPING]
    while not stopping.is_set():
        is_behind = False
        for name, asked in views:
            try:
                reply = await ask(VIEWS[name][0], asked, request[CALLER])
            except PlexError as error:
                await _write(response, _event(name, error_of(error)))
                continue
            await _write(response, await asyncio.to_thread(_rendered, name, reply))
            if isinstance(asked, pb.TimelineRequest) and isinstance(reply, pb.TimelineReply):
                asked.after_index, is_behind = reply.next_index, bool(reply.spans)
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if is_behind else PERIOD_S):
                await stopping.wait()


def _rendered(name: str, reply: Message) -> bytes:
    if isinstance(reply, pb.TimelineReply):
        return _event(name, {"next": reply.next_index, "rows": _rows(reply)})
    return _event(name, to_dict(reply))


def _rows(reply: pb.TimelineReply) -> list[list[object]]:
    """Return spans as rows: there are many, and their fields' names would be most of the text."""
    return [
        [
            f"{span.node_id}:{span.device}",
            span.kind,
            span.deployment_id,
            span.start_us,
            span.end_us,
            span.nbytes,
            span.operation_id.hex(),
        ]
        for span in reply.spans
    ]


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _write(response: web.StreamResponse, event: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(event)

"""HTTP server of a router: bearer tokens, bounded bodies, errors as JSON; routes come in tables.

It is for clients that others wrote. A connection that sends no request is closed after a while, and
so is one beyond `router.max_connections`, before anybody is asked for a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf.message import Message

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexsvc.errors import ErrorCode, PlexError, bad_request, internal, not_found, payload_too_large
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router.auth import Caller, Tenants
from plexsvc.router.config import RouterConfig

SILENT_S: Final = 10.0
"""How long a new connection may take to send the head of a request, and a request its body."""
IDLE_S: Final = 60.0
"""How long a connection may be kept between requests."""
STOP_S: Final = 2.0
QUICK_BYTES: Final = 64 << 10
"""Bodies up to this are read on the event loop, larger ones on a thread."""

_STATUS: Final = {
    ErrorCode.BAD_REQUEST: 400,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.OPERATION_TIMEOUT: 408,
    ErrorCode.PAYLOAD_TOO_LARGE: 413,
    ErrorCode.QUEUE_FULL: 429,
    ErrorCode.UNAVAILABLE: 503,
}

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[[str, Message, Caller], Awaitable[Any]]
"""Asks, as that caller, the method of the Router of that name."""
TENANT: Final = web.RequestKey("tenant", TenantId)
CALLER: Final = web.RequestKey("caller", Caller)
API_KEY: Final = "X-API-Key"
KEY_PREFIX: Final = "tml-"
READING: Final = ("GET", "HEAD")
STOPPING: Final = web.AppKey("stopping", asyncio.Event)
"""Set when the server is to end: streams without an end of their own end then."""

log = Log(__name__)


@asynccontextmanager
async def serving(
    routes: Iterable[web.RouteDef],
    *,
    tenants: Tenants,
    config: RouterConfig,
    files: Iterable[web.RouteDef] = (),
) -> AsyncIterator[str]:
    """Serve routes, over TLS where the router has a certificate; yield where, or "" for nowhere.

    Routes of `files` need no token.

    Raises:
        PlexError: `bad_request` for an address that cannot be listened on.
    """
    if not config.http_listen:
        yield ""
        return
    files = list(files)
    guard = _Guard(tenants, is_open={file.path for file in files}.__contains__)
    app = web.Application(middlewares=[guard.serve], client_max_size=MAX_MESSAGE_BYTES)
    app.add_routes([*files, *routes])
    app[STOPPING] = stopping = asyncio.Event()

    async def stop(_: web.Application) -> None:
        stopping.set()

    app.on_shutdown.append(stop)
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,  # what nobody waits for ends
        keepalive_timeout=IDLE_S,
        shutdown_timeout=STOP_S,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        factory = _Connections(runner.server, guard, max_connections=config.max_connections)
        host, server = await _listen(factory, config)
        try:
            yield f"{host}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _is_ours(line: logging.LogRecord) -> bool:
    """Return whether a line is about this process: bytes that are no HTTP fill no log."""
    theirs = (HttpProcessingError, web.RequestPayloadError)
    return not (line.exc_info and isinstance(line.exc_info[1], theirs))


async def _listen(
    factory: Callable[[], asyncio.BaseProtocol], config: RouterConfig
) -> tuple[str, asyncio.Server]:
    host, _, port = config.http_listen.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(factory, host.strip("[]"), int(port), ssl=_tls(config))
    except (OSError, ValueError) as error:
        raise bad_request(
            f"cannot listen on router.http_listen = {config.http_listen!r}: {error}"
        ) from error
    return host, server


async def read_json(request: web.Request) -> dict[str, Any]:
    """Return the object that a request's body is.

    Raises:
        PlexError: `bad_request`, `payload_too_large`, `operation_timeout`.
    """
    body = await read_body(request)
    # JSON is UTF-8. Python knows encodings that take minutes for a body of this size (punycode).
    if (charset := request.charset or "utf-8").lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise bad_request(f"charset {charset!r:.40} of the body: JSON comes as utf-8")
    try:
        found = await off_loop(partial(_load_json, body), nbytes=len(body))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise bad_request("the body must be a JSON object")
    return found


async def off_loop(work: Callable[[], T], *, nbytes: int) -> T:
    """Return what `work` returns, on a thread where so many bytes may take it long."""
    return await asyncio.to_thread(work) if nbytes > QUICK_BYTES else work()


async def read_body(request: web.Request) -> bytes:
    """Return a request's body.

    Raises:
        PlexError: `bad_request`, `payload_too_large`, `operation_timeout`.
    """
    try:
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(SILENT_S):
            return await request.read()
    except TimeoutError:
        raise PlexError(
            ErrorCode.OPERATION_TIMEOUT, f"the body did not come within {SILENT_S:g} s"
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise payload_too_large(f"a body has {MAX_MESSAGE_BYTES} bytes at most") from None
    except web.RequestPayloadError as error:
        raise bad_request(f"the body cannot be read: {error}") from error


def _load_json(given: bytes) -> object:
    """Return what a body says.

    Names that come twice are refused: one of their values would be ignored. So are NaN and
    infinities, which JSON has not, and half of a surrogate pair, which is no text.
    """
    body = given.decode()
    found = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
    if "\\u" in body:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r:.80} comes twice in an object")
        found[name] = value
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


class _Guard:
    """Knows who calls before a byte of a body is read, and turns errors into answers."""

    def __init__(self, tenants: Tenants, *, is_open: Callable[[str], bool]) -> None:
        self._tenants = tenants
        self._is_open = is_open
        self.silent: set[asyncio.BaseProtocol] = set()
        """New connections on which no request came."""

    @web.middleware
    async def serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer to a request."""
        self.silent.discard(request.protocol)
        try:
            if request.method in READING and self._is_open(request.path):
                return await handler(request)
            caller = _caller(request, self._tenants)
            if request.method not in READING:
                caller.check_may_change(f"{request.method} {request.path}")
            self._tenants.rates.take(caller.tenant)
            request[CALLER], request[TENANT] = caller, caller.tenant
            return await handler(request)
        except PlexError as error:
            return _answer(error)
        except web.HTTPException as error:
            return _answer(
                not_found(f"{request.method} {request.path}: {error.reason}"),
                status=error.status,
            )
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            log.error("call failed", path=request.path)
            text = f"the router failed in {request.path}: {error!r}; its log says where"
            return _answer(internal(text))


def _caller(request: web.Request, tenants: Tenants) -> Caller:
    """Return who calls, by a token as it is presented elsewhere.

    The Tinker SDK has its token in a header of its own, and takes none that does not begin with
    `tml-`: one that does not may be given with that before it.

    Raises:
        PlexError: `unauthenticated`.
    """
    key = request.headers.get(API_KEY)
    if key is None or "authorization" in request.headers:
        return tenants.caller_of([(name.lower(), value) for name, value in request.headers.items()])
    try:
        return tenants.caller_of([("authorization", f"Bearer {key}")])
    except PlexError:
        if not key.startswith(KEY_PREFIX):
            raise
        return tenants.caller_of([("authorization", f"Bearer {key.removeprefix(KEY_PREFIX)}")])


class _Connections:
    """Makes the protocol of each connection, bounded in number and in patience."""

    def __init__(self, server: web.Server, guard: _Guard, *, max_connections: int) -> None:
        self._server = server
        self._guard = guard
        self._max = max_connections

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        if len(self._server.connections) >= self._max:
            return _Full()
        protocol = self._server()
        self._guard.silent.add(protocol)
        asyncio.get_running_loop().call_later(SILENT_S, self._hang_up, protocol)
        return protocol

    def _hang_up(self, protocol: web.RequestHandler) -> None:
        if protocol in self._guard.silent:
            self._guard.silent.discard(protocol)
            protocol.force_close()


class _Full(asyncio.Protocol):
    """A connection beyond the bound."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def error_of(error: PlexError) -> dict[str, Any]:
    """Return an error in the form that OpenAI's clients read."""
    said = {"message": error.message, "type": str(error.code), "code": str(error.code)}
    if (error.code, error.facts.get("field")) == (ErrorCode.NOT_FOUND, "model"):
        said |= {"type": "invalid_request_error", "code": "model_not_found"}  # as OpenAI says it
    return {"error": {**said, "param": error.facts.get("field"), "facts": error.facts}}


def _answer(error: PlexError, *, status: int = 0) -> web.Response:
    otherwise = 503 if error.retryable else 500
    return web.json_response(error_of(error), status=status or _STATUS.get(error.code, otherwise))


def _tls(config: RouterConfig) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.tls_cert, config.tls_key)
    return context

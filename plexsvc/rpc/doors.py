"""Door of a server: who is let in, before a byte of a request is read.

A `Door` looks at a call's metadata alone. A caller that it refuses gets `unauthenticated`, and its
messages are neither read nor decoded. Members on other hosts carry nothing there: they are let in
by the certificate that their connection showed, which is looked at before a message is decoded. A
caller that was let in, but sends what is no message of the method, gets `bad_request`. Each costs a
line of the log, at a bounded rate. Probes of health have no token, and are let in.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from plexsvc.errors import PlexError, bad_request
from plexsvc.log import Log, Quota
from plexsvc.rpc.keys import SECRET_KEY, ClusterKeys
from plexsvc.rpc.status import abort_with

MethodHandler = Any  # grpc.RpcMethodHandler, whose stubs lack its fields

log: Final = Log(__name__)

PROBE: Final = "/grpc.health.v1.Health/Check"
"""Not `Watch`: a stranger would hold a stream."""


class Door(Protocol):
    """Who may call."""

    def refusal(self, metadata: Iterable[tuple[str, str | bytes]]) -> PlexError | None:
        """Return why a call with this metadata is refused, None to let it in."""


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Asks the door about each call of a server, whatever its service and method."""

    def __init__(self, door: Door, *, takes_nodes: Collection[str]) -> None:
        self._door = door
        self._takes_nodes = takes_nodes
        self._lines = Quota(lines=10, window_s=10.0)
        self._guarded: dict[tuple[str, bool], MethodHandler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        """Return the handler of a call, or one that refuses it unread."""
        method = str(handler_call_details.method)
        metadata = handler_call_details.invocation_metadata or ()
        refusal = None if method == PROBE else self._door.refusal(metadata)
        by_certificate = (
            refusal is not None
            and isinstance(self._door, ClusterKeys)
            and all(key != SECRET_KEY for key, _ in metadata)
        )
        if refusal is not None and not by_certificate:
            self._say("call refused", method=method, error=refusal)

            async def refuse(_: object, context: Any) -> None:
                await abort_with(context, refusal)

            # A stream each way is called before any message is read, whatever the method's kind.
            return grpc.stream_stream_rpc_method_handler(refuse)
        found = (method, by_certificate)
        if found not in self._guarded:
            handler = await continuation(handler_call_details)
            # Not remembered: callers could name any number of methods that there are not.
            if handler is None:
                return None
            guarded = self._guard(handler, method)
            self._guarded[found] = self._ask(guarded, method) if by_certificate else guarded
        return self._guarded[found]

    def _ask(self, handler: MethodHandler, method: str) -> MethodHandler:
        """Return a handler that first looks at the caller's certificate."""
        keys = self._door
        assert isinstance(keys, ClusterKeys), method
        kind = "stream_" if handler.request_streaming else "unary_"
        kind += "stream" if handler.response_streaming else "unary"
        call = getattr(handler, kind)
        takes_nodes = method.rpartition("/")[2] in self._takes_nodes

        async def look(context: Any) -> None:
            shown = context.auth_context()
            refusal = keys.refusal_of_peer(shown, takes_nodes=takes_nodes)
            if refusal is not None:
                self._say("call refused", method=method, error=refusal)
                await abort_with(context, refusal)

        async def answer(request: Any, context: Any) -> Any:
            await look(context)
            return await call(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await look(context)
            async with aclosing(call(request, context)) as replies:
                async for reply in replies:
                    yield reply

        made = getattr(grpc, f"{kind}_rpc_method_handler")
        asked = stream if inspect.isasyncgenfunction(call) else answer
        return made(asked, handler.request_deserializer, handler.response_serializer)

    def _guard(self, handler: MethodHandler, method: str) -> MethodHandler:
        """Return a handler that decodes by itself: gRPC logs a traceback for each failure."""
        decode = handler.request_deserializer
        if decode is None or handler.request_streaming:
            return handler

        async def decoded(data: bytes, context: Any) -> Any:
            try:
                return decode(data)
            except DecodeError as error:
                self._say("undecodable request", method=method, error=error)
                text = f"the {len(data)} bytes of the call are no request of {method}: {error}"
                await abort_with(context, bad_request(text))

        async def answer(data: bytes, context: Any) -> Any:
            return await handler.unary_unary(await decoded(data, context), context)

        async def stream(data: bytes, context: Any) -> AsyncIterator[Any]:
            async with aclosing(
                handler.unary_stream(await decoded(data, context), context)
            ) as replies:
                async for reply in replies:
                    yield reply

        encode = handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, encode)
        return grpc.unary_unary_rpc_method_handler(answer, None, encode)

    def _say(self, phrase: str, *, method: str, error: Exception) -> None:
        left_out = self._lines.take()
        if left_out is not None:
            log.warning(phrase, method=method, error=error, left_out=left_out)

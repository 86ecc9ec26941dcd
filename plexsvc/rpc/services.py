"""gRPC services by their descriptors: handlers put on a server, calls made on a channel.

A single message is parsed and serialised here. A stream of requests passes as bytes, and one of
replies may, so that a relay can forward it unread.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from plexsvc.errors import PlexError, internal
from plexsvc.log import Log
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.status import abort_with

log = Log(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler = Callable[[Any, Context], Awaitable[Any]]
"""Takes a request and returns the reply. With a stream of requests it reads from the context."""
Streaming = Callable[[Any, Context], AsyncGenerator[Any]]
"""Takes a request and yields the replies, as messages or bytes."""
Methods = Mapping[str, Callable[..., Awaitable[Message]]]
"""Functions from a request to a reply, by their methods' names."""
Reply = TypeVar("Reply", bound=Message)

_KINDS: Final[Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    *,
    calls: Mapping[str, Handler],
    streams: Mapping[str, Streaming] | None = None,
) -> None:
    """Serve methods of `service` on `server`; a failure ends a call with the wire's error.

    `streams` are the methods that answer one request with a stream.
    """
    handlers: dict[str, Handler | Streaming] = {
        name: _calling(service, name, call) for name, call in calls.items()
    }
    handlers |= {name: _yielding(service, name, stream) for name, stream in (streams or {}).items()}
    made = {name: _served(service.methods_by_name[name], h) for name, h in handlers.items()}
    generic = grpc.method_handlers_generic_handler(service.full_name, made)
    server.add_generic_rpc_handlers((generic,))


def add_servicer(server: grpc.aio.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Serve the methods of `service` that an object has under their names in Python's spelling.

    Each takes the request alone, or a stream of them as bytes, and returns the reply, or yields
    replies; what it raises is the wire's error.
    """

    def handler(method: Callable[[Any], Any]) -> Callable[[Any, Context], Any]:
        return lambda request, _: method(request)

    calls: dict[str, Handler] = {}
    streams: dict[str, Streaming] = {}
    for described in service.methods:
        spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", described.name).lower()
        if (method := getattr(servicer, spelled, None)) is not None:
            (streams if described.server_streaming else calls)[described.name] = handler(method)
    add_service(server, service, calls=calls, streams=streams)


def unary_methods(service: ServiceDescriptor) -> dict[str, MethodDescriptor]:
    """Return the methods with one request and one reply, by name."""
    return {
        method.name: method
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    }


def has_option(found: MethodDescriptor | FieldDescriptor, option: FieldDescriptor) -> bool:
    """Return whether a method or a field sets an option of service.proto."""
    options: Any = found.GetOptions()  # extensions are untyped
    return bool(options.Extensions[option])


def reply_type(method: MethodDescriptor) -> type[Message]:
    """Return the class of a method's replies."""
    return GetMessageClass(method.output_type)


async def call(
    channel: grpc.aio.Channel,
    method: MethodDescriptor,
    request: Message,
    reply: type[Reply],
    *,
    timeout_s: float,
) -> Reply:
    """Return the reply to one request.

    Raises:
        PlexError: what the service answered, or `unavailable` when nobody did.
    """
    ask = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=_serialised,
        response_deserializer=reply.FromString,
    )
    try:
        return await ask(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as failure:
        raise error_from(failure) from failure


def _served(
    method: MethodDescriptor, handler: Handler | Streaming
) -> grpc.RpcMethodHandler[Any, Any]:
    kind = _KINDS[method.client_streaming, method.server_streaming]
    # A stream of requests passes as bytes: a relay need not parse it.
    request = None if method.client_streaming else GetMessageClass(method.input_type).FromString
    return kind(handler, request_deserializer=request, response_serializer=_serialised)


def _calling(service: ServiceDescriptor, name: str, handler: Handler) -> Handler:
    async def handle(request: object, context: Context) -> object:
        try:
            return await handler(request, context)
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            await _abort(context, error, service=service, method=name)

    return handle


def _yielding(service: ServiceDescriptor, name: str, handler: Streaming) -> Streaming:
    async def handle(request: object, context: Context) -> AsyncGenerator[Message | bytes]:
        try:
            async with aclosing(handler(request, context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            await _abort(context, error, service=service, method=name)

    return handle


async def _abort(
    context: Context, error: Exception, *, service: ServiceDescriptor, method: str
) -> NoReturn:
    if not isinstance(error, PlexError):
        log.error("call failed", method=method)
        where = f"the {service.name.lower()} failed in {method}"
        text = f"{where}: {type(error).__name__}: {error}; its log says where"
        error = internal(text)
    await abort_with(context, error)


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def to_dict(message: Message) -> dict[str, Any]:
    """Return a reply as JSON has it, every field present."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

"""Channel to the router: its methods, the token on every call, deadlines, typed failures."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from plexclient.errors import ErrorCode, bad_request
from plexclient.failures import error_of
from plexclient.operations import Operations
from plexclient.wire import channels
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import operations_pb2, service_pb2, service_pb2_grpc

OPTIONS: Final[channels.Options] = (
    *channels.CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A channel of its own: several connections of one process must not share a socket.
    ("grpc.use_local_subchannel_pool", 1),
)
"""The options that every channel has, and quick reconnects."""

Stub: Final[Any] = service_pb2_grpc.RouterStub  # generated code carries no annotations


def router_tls(ca: str) -> grpc.ChannelCredentials | None:
    """Return what knows a router by the certificates in the PEM file `ca`; None without one.

    Raises:
        PlexError: `bad_request` when the file cannot be read.
    """
    if not ca:
        return None
    try:
        return grpc.ssl_channel_credentials(Path(ca).read_bytes())
    except OSError as error:
        raise bad_request(
            f"ca {ca!r} cannot be read: {error}; give the PEM file of the router's certificate or "
            "of who signed it"
        ) from error


def dialed(address: str) -> tuple[str, channels.Options]:
    """Return what gRPC dials for an address, and the options that this takes.

    Of several, it tries one after the other whenever a connection ends.

    Raises:
        PlexError: `bad_request` for what is no address; for one of several that is not known.
    """
    if address.startswith("unix:"):
        return address, ()
    found = [one.rpartition(":") for one in address.split(",")]
    if not all(host and port.isdecimal() and 0 < int(port) < 2**16 for host, _, port in found):
        raise bad_request(
            f"connect({address!r}): an address is 'host:port' or 'unix:path'; several are "
            "'host:port,host:port'"
        )
    if len(found) == 1:
        return address, ()
    targets = ",".join(f"{_ip(host)}:{port}" for host, _, port in found)
    name = found[0][0]  # over TLS, the certificate of each is for the first
    return f"ipv4:{targets}", (("grpc.ssl_target_name_override", name),)


def _ip(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, family=socket.AF_INET)[0][4][0])
    except OSError as error:
        raise bad_request(f"host {host!r} of several addresses is not known: {error}") from error


def open_router(address: str, *, ca: str) -> grpc.aio.Channel:
    """Return a channel to a router, over TLS with `ca`."""
    target, more = dialed(address)
    credentials, options = router_tls(ca), [*OPTIONS, *more]
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def bearer(token: str) -> tuple[str, str]:
    """Return the header by which a call carries `token`.

    Raises:
        PlexError: `bad_request` for one that no header can carry.
    """
    if not (token.isascii() and token.isprintable()):
        raise bad_request(
            "the token has characters that a call cannot carry; give one of printable ASCII"
        )
    return "authorization", f"Bearer {token}"


class Link:
    """Calls on one router. Lives on the connection's loop. Every failure is a `PlexError`."""

    def __init__(self, address: str, *, token: str, ca: str = "") -> None:
        self.address = address
        self._channel = open_router(address, ca=ca)
        self._stub = Stub(self._channel)
        self._metadata = (bearer(token),)
        self._operations = Operations(
            lambda: self._stub.Operate(metadata=self._metadata), check=_check_taken
        )
        self.submit = self._operations.ask
        """Returns an operation's answer; raises a refusal that has not taken its number."""

    async def unary(self, method: str, request: Message, *, timeout_s: float) -> Any:
        """Return the reply of a unary method."""
        call = getattr(self._stub, method)
        try:
            return await call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from None  # it says all that gRPC said

    async def stage(
        self, parts: Iterable[service_pb2.StageRequest], *, timeout_s: float
    ) -> service_pb2.StageReply:
        """Upload a payload: the header, then its chunks; raises the reply's error if it has one."""
        try:
            reply: service_pb2.StageReply = await self._stub.StagePayload(
                iter(parts), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from None  # it says all that gRPC said
        if reply.HasField("error"):
            raise from_wire(reply.error)
        return reply

    def open_stream(self, method: str, request: Message, *, timeout_s: float) -> Any:
        """Return the running call of a streaming method; read it with `messages`."""
        return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)

    async def close(self) -> None:
        """End the stream of operations and close the channel."""
        await self._operations.aclose()
        await self._channel.close()


def _check_taken(result: operations_pb2.OperationResult) -> None:
    """Raise a refusal that has not taken the operation's number."""
    is_failed = result.state == operations_pb2.OPERATION_STATE_FAILED
    if result.HasField("error") and not is_failed:
        error = from_wire(result.error)
        if error.retryable or error.code is ErrorCode.INTERNAL:
            raise error


async def messages(call: Any) -> AsyncGenerator[Any]:
    """Yield the messages of a streaming call; cancels it when left early."""
    try:
        while (message := await call.read()) is not grpc.aio.EOF:
            yield message
    except grpc.aio.AioRpcError as failure:
        raise error_of(failure) from None  # it says all that gRPC said
    finally:
        call.cancel()

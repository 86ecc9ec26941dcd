"""gRPC channels and servers: one set of options, and the credentials of every call.

An address is `unix:PATH`, a socket in a directory of this user alone, where a call carries the
host's secret, or `HOST:PORT`, where both ends show a certificate of the cluster (TLS).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import grpc

from plexclient.wire.channels import CHANNEL_OPTIONS, LIMITS, Options
from plexsvc.errors import PlexError, bad_request
from plexsvc.rpc.addresses import socket_path
from plexsvc.rpc.certificates import TLS_NAME
from plexsvc.rpc.doors import Door, Doorkeeper
from plexsvc.rpc.keys import ClusterKeys, renewed

SERVER_OPTIONS: Final[Options] = (
    *LIMITS,
    ("grpc.keepalive_time_ms", 30_000),  # a stream without a deadline must not outlive its client
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # who connects and says nothing is hung up on
    ("grpc.max_connection_idle_ms", 600_000),  # and who has no call for long; clients reconnect
)

MAX_CALLS: Final = 16_384
"""Calls that a server has under way at once, streams included, of all clients."""

MAX_CONNECTIONS: Final = 4096
"""Connections that a server has open at once."""

MAX_UNACCEPTED: Final = 64
"""Connections of a port that wait to be accepted. The kernel lets further callers try again after a
second. gRPC would let thousands wait and accepts until nobody does, on the thread that reads calls:
a client that connects without end would keep it from those who are connected."""

PATIENT: Final[Options] = (
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)
"""For a process on this host: it cannot lose power alone, so one that answers no ping is busy, and
thousands of streams would break for it. One that is stopped is also found by its beats."""

SOON: Final[Options] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""A process may serve where another one died, and channels to an address share their pauses: up to
two minutes unless told otherwise."""

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def open_channel(target: str, keys: ClusterKeys | None) -> grpc.aio.Channel:
    """Return an aio channel to `host:port` or `unix:path`; every call on it needs a deadline.

    Without keys, each caller adds a token of its own.
    """
    options = _options(target)
    if keys is not None and socket_path(target) is None:
        return grpc.aio.secure_channel(target, _client_tls(keys), options=[*options, _TLS_NAME])
    channel = grpc.aio.insecure_channel(target, options=options)
    return channel if keys is None else cast("grpc.aio.Channel", _Keyed(channel, keys))


def open_blocking_channel(target: str, keys: ClusterKeys) -> grpc.Channel:
    """Return a channel like `open_channel`'s whose calls block."""
    options = _options(target)
    if socket_path(target) is None:
        return grpc.secure_channel(target, _client_tls(keys), options=[*options, _TLS_NAME])
    return cast("grpc.Channel", _Keyed(grpc.insecure_channel(target, options=options), keys))


def _options(target: str) -> list[tuple[str, int | str]]:
    is_here = socket_path(target) is not None
    return list({**dict(CHANNEL_OPTIONS), **dict(SOON), **dict(PATIENT if is_here else ())}.items())


def new_server(
    door: Door,
    *,
    max_calls: int = MAX_CALLS,
    max_connections: int = MAX_CONNECTIONS,
    takes_nodes: Collection[str] = (),
) -> grpc.aio.Server:
    """Return an aio server that lets in whom `door` does; the caller adds servicers and ports.

    Of members on other hosts, that is the service. Nodes that joined reach the methods with names
    in `takes_nodes`.

    A call beyond `max_calls` ends with RESOURCE_EXHAUSTED, a connection beyond `max_connections` is
    closed, before anybody is asked who calls.
    """
    bounds = (
        ("grpc.max_allowed_incoming_connections", max_connections),
        # From the first of these on gRPC drops calls by chance: by default from 1,000 that wait.
        ("grpc.server.max_pending_requests", max_calls),
        ("grpc.server.max_pending_requests_hard_limit", max_calls),
    )
    return grpc.aio.server(
        options=[*SERVER_OPTIONS, *bounds],
        interceptors=(Doorkeeper(door, takes_nodes=takes_nodes),),
        maximum_concurrent_rpcs=max_calls,
    )


def listen(server: grpc.aio.Server, address: str, keys: ClusterKeys, *, key: str) -> str:
    """Have `server` listen at an address for members of the cluster; return what reaches it.

    Port 0 takes a free one. `key` is the configuration's name of the address.

    Raises:
        PlexError: `bad_request` for an address that cannot be listened on.
    """
    path = socket_path(address)
    if path is None:
        credentials = grpc.dynamic_ssl_server_credentials(
            _shown(keys),
            lambda: _shown(renewed(keys)),
            require_client_authentication=True,
        )
        return bind(server, address, credentials, key=key)
    check_private(path.parent)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise _not_bound(address, error, key=key) from error
    path.chmod(0o600)
    return address


def bind(
    server: grpc.aio.Server,
    address: str,
    credentials: grpc.ServerCredentials | None,
    *,
    key: str,
) -> str:
    """Have `server` listen at `HOST:PORT`, in clear without credentials; return what reaches it.

    Raises:
        PlexError: `bad_request` for an address that cannot be listened on.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise _not_bound(address, error, key=key) from error
    # gRPC has no option for it: to listen again on its own socket sets how many may wait.
    sockets = (place for place in Path("/proc/self/fd").iterdir() if place.is_socket())
    for place in sockets:
        with suppress(OSError), socket.socket(fileno=os.dup(int(place.name))) as found:
            is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            is_tcp = found.family != socket.AF_UNIX
            if is_listening and is_tcp and found.getsockname()[1] == port:
                found.listen(MAX_UNACCEPTED)
    return f"{address.rpartition(':')[0]}:{port}"


def check_private(directory: Path) -> None:
    """Refuse a directory in which others than this user could reach or replace a socket.

    Raises:
        PlexError: `bad_request`.
    """
    found = directory.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise bad_request(
            f"{directory} has mode {stat.S_IMODE(found.st_mode):o} and belongs to user "
            f"{found.st_uid}; sockets lie in a directory of mode 700 of user {os.geteuid()}"
        )


class _Keyed:
    """A channel, aio or blocking, whose calls carry the host's secret.

    An interceptor would do the same and cost a task for each call.
    """

    def __init__(self, channel: grpc.aio.Channel | grpc.Channel, keys: ClusterKeys) -> None:
        self._channel: Any = channel
        self._metadata = keys.metadata

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return partial(self._made, found) if name in _KINDS else found

    def _made(self, make: Any, *arguments: Any, **named: Any) -> _KeyedCall:
        return _KeyedCall(make(*arguments, **named), self._metadata)

    async def __aenter__(self) -> Any:
        await cast("AbstractAsyncContextManager[object]", self._channel).__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._channel.__aexit__(*failure)

    def __enter__(self) -> Any:
        cast("AbstractContextManager[object]", self._channel).__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._channel.__exit__(*failure)


class _KeyedCall:
    """A method of such a channel."""

    def __init__(self, call: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._call, self._metadata = call, metadata

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, metadata=self._metadata, **named)

    def future(self, *arguments: Any, **named: Any) -> Any:
        """Return at once; of a blocking channel."""
        return self._call.future(*arguments, metadata=self._metadata, **named)


def _shown(keys: ClusterKeys) -> grpc.ServerCertificateConfiguration:
    """Return what a server shows, and by what it knows its callers."""
    pair = (keys.private_key.encode(), keys.certificate.encode())
    return grpc.ssl_server_certificate_configuration([pair], keys.root.encode())


_TLS_NAME: Final = ("grpc.ssl_target_name_override", TLS_NAME)


def _client_tls(keys: ClusterKeys) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        keys.root.encode(), keys.private_key.encode(), keys.certificate.encode()
    )


def _not_bound(address: str, error: RuntimeError, *, key: str) -> PlexError:
    return bad_request(
        f"cannot listen on {key} = {address!r}: {error}; is another cluster running? "
        "Port 0 takes a free one"
    )

"""Client of a cluster's router for commands: a typed stub with token, deadline and typed errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from plexclient.failures import error_of
from plexclient.link import bearer, dialed, router_tls
from plexclient.wire.channels import CHANNEL_OPTIONS
from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from plexsvc.cluster.places import Card

CALL_TIMEOUT_S: Final = 10.0


@contextmanager
def router(card: Card) -> Iterator[service_pb2_grpc.RouterStub]:
    """Yield the stub of the router that `card` names.

    Calls have a deadline of `CALL_TIMEOUT_S` unless they give one. They raise a `PlexError`: what
    the service answered, or `unavailable` when nobody did.
    """
    target, more = dialed(card.address)
    options, credentials = [*CHANNEL_OPTIONS, *more], router_tls(card.ca)
    if credentials is None:
        opened = grpc.insecure_channel(target, options=options)
    else:
        opened = grpc.secure_channel(target, credentials, options=options)
    with opened as channel:
        yield service_pb2_grpc.RouterStub(grpc.intercept_channel(channel, _CallInterceptor(card)))


def lending_to(card: Card) -> Callable[[service_pb2.LendInstanceRequest], object]:
    """Return what tells a cluster of a guest, and raises a `PlexError` when it refuses."""

    def tell(request: service_pb2.LendInstanceRequest) -> object:
        with router(card) as stub:
            return stub.LendInstance(request)

    return tell


@dataclass(frozen=True)
class _Details(grpc.ClientCallDetails):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None = None
    wait_for_ready: bool | None = None
    compression: grpc.Compression | None = None


class _CallInterceptor(grpc.UnaryUnaryClientInterceptor):
    """Adds token and deadline to each call, and turns failures into `PlexError`s."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request: Any,
    ) -> Any:
        details = _Details(
            method=client_call_details.method,
            timeout=client_call_details.timeout or CALL_TIMEOUT_S,
            metadata=(bearer(self._card.token),),
        )
        call = continuation(details, request)
        try:
            call.result()
        except grpc.RpcError as failure:
            address = self._card.address
            text = f"no answer from the cluster at {address}; is `plexctl up` running there?"
            raise error_of(failure, text=text) from failure
        return call

"""Client of a cluster's router for commands: one channel, a token, a deadline on each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from plexclient.failures import error_of
from plexclient.wire.v1 import service_pb2_grpc
from plexsvc.cluster.places import Card
from plexsvc.rpc.channels import CHANNEL_OPTIONS

Reply = TypeVar("Reply", bound=Message)
CALL_TIMEOUT_S: Final = 10.0


class RouterCalls:
    """Blocking calls to a router; every failure is a `PlexError`."""

    def __init__(self, channel: grpc.Channel, *, card: Card) -> None:
        self._stub = service_pb2_grpc.RouterStub(channel)
        self._card = card

    def call(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Reply:
        """Return the reply of Router method `method`.

        Raises:
            PlexError: what the service answered, or `unavailable` when nobody did.
        """
        function: Callable[..., Message] = getattr(self._stub, method)
        metadata = (("authorization", f"Bearer {self._card.token}"),)
        try:
            reply = function(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as failure:
            address = self._card.address
            text = f"no answer from the cluster at {address}; is `plexctl up` running there?"
            raise error_of(failure, text=text) from failure
        assert isinstance(reply, reply_type), reply
        return reply


@contextmanager
def router(card: Card) -> Iterator[RouterCalls]:
    """Yield calls to the router that `card` names."""
    with grpc.insecure_channel(card.address, options=list(CHANNEL_OPTIONS)) as channel:
        yield RouterCalls(channel, card=card)

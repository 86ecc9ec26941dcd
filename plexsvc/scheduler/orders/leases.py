"""Leases of nodes, renewed on a thread of its own: nothing that the event loop does delays them.

A lease is renewed every quarter of its length and is over when `ATTEMPTS` renewals in a row failed,
so its length after the last one that was answered, or when its agent refuses one. Attempts are
counted, not time: after a service that stood still (SIGSTOP, a suspended machine) the next renewals
decide. The event loop takes no part: it is told the end of a lease, and otherwise may be blocked
for any time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from itertools import islice
from typing import Final

import grpc

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.errors import ErrorCode, PlexError, unavailable
from plexsvc.log import Log
from plexsvc.rpc.addresses import host_of
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys, read_shut_out

log = Log(__name__)

ATTEMPTS: Final = 3
"""Renewals in a row that fail before a lease is over."""

MAX_WITNESSES: Final = 4
"""Agents of other hosts that a renewal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The last renewal that an agent answered."""

    reply: node_pb2.RenewReply
    sent_s: float
    """When it was sent, by the monotonic clock."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Lease:
    """One node's lease; the thread alone uses its channel."""

    target: str
    channel: grpc.Channel
    stub: node_pb2_grpc.NodeStub
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[None]
    call: grpc.Future[node_pb2.RenewReply] | None = None
    sent_s: float = 0.0
    """When `call` was made, by the monotonic clock."""
    renewed: Renewed | None = None
    failures: int = 0
    is_let_end: bool = False
    is_over: bool = False

    def end(self, because: PlexError) -> None:
        """Tell the event loop why the lease is over."""
        self.is_over = True
        self.loop.call_soon_threadsafe(self._end, because)

    def _end(self, because: PlexError) -> None:
        if not self.ended.done():
            self.ended.set_exception(because)


class Leases:
    """The leases of one scheduler."""

    def __init__(self, *, lease_us: int, ttl_us: int, epoch: int, keys: ClusterKeys) -> None:
        """Renew each lease of `lease_us`; its agent keeps its ranks for `ttl_us` from each time."""
        self.epoch = epoch
        self._look_us = lease_us * 5 // 8  # looking takes a second, and the ranks have to end
        self._period_s = lease_us / (ATTEMPTS + 1) / 1e6
        self._ttl_us = ttl_us
        self._keys = keys
        self._leases: list[_Lease] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    async def keep(self, target: str) -> None:
        """Renew the lease of the agent at `target` until cancelled.

        Raises:
            PlexError: `unavailable` when it could not be renewed, or what the agent refuses with.
        """
        loop = asyncio.get_running_loop()
        channel = open_blocking_channel(target, self._keys)
        stub = node_pb2_grpc.NodeStub(channel)
        ended = loop.create_future()
        lease = _Lease(target=target, channel=channel, stub=stub, loop=loop, ended=ended)
        self._leases.append(lease)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()
        try:
            await ended
        finally:
            lease.is_over = True

    def request(self, target: str) -> node_pb2.RenewRequest:
        """Return what renews the lease of the agent at `target` now.

        It tells which certificates are refused, and by which agents a host that hears nothing more
        finds out whether it is cut off.
        """
        own = {"", host_of(target)}
        others = (
            lease.target
            for lease in tuple(self._leases)
            if not lease.is_over and host_of(lease.target) not in own
        )
        return node_pb2.RenewRequest(
            scheduler_epoch=self.epoch,
            ttl_us=self._ttl_us,
            shut_out=sorted(read_shut_out(self._keys.shut_out)),
            look_us=self._look_us,
            witnesses=islice(others, MAX_WITNESSES),
        )

    def renewed(self, target: str) -> Renewed | None:
        """Return the last renewal that the agent at `target` answered, if its lease is kept."""
        leases = (one for one in tuple(self._leases) if one.target == target and not one.is_over)
        return next((lease.renewed for lease in leases), None)

    def let_end(self, target: str) -> None:
        """Renew an agent's lease no more; it is over as if the agent were silent."""
        for lease in tuple(self._leases):
            lease.is_let_end |= lease.target == target

    async def close(self) -> None:
        """End the thread and what it has open."""
        self._stopped.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            for lease in tuple(self._leases):
                if not lease.is_over:
                    self._look(lease)
                else:
                    self._leases.remove(lease)
                    lease.channel.close()
        for lease in self._leases:
            lease.channel.close()

    def _look(self, lease: _Lease) -> None:
        """Judge the last renewal of a lease, and send the next."""
        failure = None if lease.call is None else _failure(lease.call)
        if lease.is_let_end:
            failure = unavailable("the node was shut out")
        lease.failures = 0 if failure is None else lease.failures + 1
        if failure is None and lease.call is not None:
            lease.renewed = Renewed(reply=lease.call.result(), sent_s=lease.sent_s)
        if failure is not None:
            log.warning("renewal failed", agent=lease.target, error=failure.message)
        if failure is not None and (
            lease.failures == ATTEMPTS or failure.code is not ErrorCode.UNAVAILABLE
        ):
            lease.end(failure)
        elif not lease.is_let_end:
            lease.sent_s = time.monotonic()
            lease.call = lease.stub.Renew.future(self.request(lease.target), timeout=self._period_s)


def _failure(call: grpc.Future[node_pb2.RenewReply]) -> PlexError | None:
    """Return why a renewal failed; None if it did not. One without an answer by now has failed."""
    if not call.done():
        call.cancel()
        return unavailable("the node agent did not answer in time")
    try:
        reply = call.result()
    except grpc.RpcError as error:
        return unavailable(error_from(error).message)
    return from_wire(reply.error) if reply.HasField("error") else None

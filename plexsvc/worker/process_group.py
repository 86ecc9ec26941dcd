"""Process group of a WPG's ranks: joining it, agreeing in it, and leaving it to join anew.

A rank whose operation fails cannot take part in what its peers go on to do together. It says why
in the store where the ranks met, and leaves: that breaks the connections on which the peers wait,
they find its cause in the store, leave too, and all meet again in a new group.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import gc
import importlib
import os
import socket
import struct
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import PlexError, unavailable
from plexsvc.rpc.addresses import host_of
from plexsvc.worker.config import WorkerConfig

_SIOCGIFADDR: Final = 0x8915

WATCH_S: Final = 0.5
"""How often a rank on a GPU looks whether a peer has left: NCCL tells those who wait nothing."""


@dataclass(slots=True)
class _Rendezvous:
    """Where the ranks meet, and how often they have; no store for a rank alone."""

    store: dist.Store | None = None
    count: int = 0
    sockets: frozenset[str] = frozenset()
    """The process's sockets before it joined the present group."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set when this rank leaves the present group."""

    @property
    def cause_key(self) -> str:
        """Where the first rank that leaves the present group says why."""
        return f"cause-{self.count}"


_meeting: Final = _Rendezvous()


def join(config: WorkerConfig) -> None:
    """Initialise torch.distributed: gloo on CPU, nccl on a GPU; blocks until all ranks are there.

    Joins anew after `leave`.

    Raises:
        PlexError: `unavailable` when the ranks do not find each other in `collective_timeout_s`.
    """
    timeout = dt.timedelta(seconds=config.collective_timeout_s)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    try:
        if config.world_size == 1:
            _be_alone(backend, timeout=timeout)
            return
        if (interface := _interface_of(host_of(config.listen))) is not None:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ[name] = interface  # noqa: TID251 - there is no other way to tell them
        if _meeting.store is None:
            _meeting.store = _meeting_place(config, timeout)
        _meeting.count += 1
        _meeting.left = threading.Event()
        _meeting.sockets = frozenset(name for name, _ in _sockets())
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"group-{_meeting.count}", _meeting.store),
            rank=config.rank,
            world_size=config.world_size,
            timeout=timeout,
        )
        if backend == "nccl":
            threading.Thread(target=_watch, args=(_meeting.left,), daemon=True).start()
    except (OSError, RuntimeError, ValueError) as error:
        raise unavailable(
            f"rank {config.rank} of {config.wpg_id} did not find its {config.world_size - 1} peers "
            f"at {config.rendezvous!r}: {error}"
        ) from error


def _be_alone(backend: str, *, timeout: dt.timedelta) -> None:
    """Make a group of one. On a CPU it opens no port: each group of gloo would listen on one.

    torch's backend "fake" copies inputs to outputs, which is what any collective of one rank does.
    """
    if backend == "gloo":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
        backend = "fake"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


def _meeting_place(config: WorkerConfig, timeout: dt.timedelta) -> dist.Store:
    """Return the store in which the ranks find each other: a file, or a port of rank 0's host.

    torch would listen on every interface; a listener of our own is bound to the one address.
    """
    scheme, _, place = config.rendezvous.partition("://")
    if scheme == "file":
        return dist.FileStore(place, config.world_size)
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    if config.rank:
        return dist.TCPStore(host, int(port), config.world_size, timeout=timeout)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, int(port)), family=family)
    return dist.TCPStore(
        host,
        int(port),
        config.world_size,
        is_master=True,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )


def _interface_of(host: str) -> str | None:
    """Return the network interface that has an address; loopback for none; None if unknown."""
    if not host:
        return "lo"
    family, _, _, _, (address, *_) = socket.getaddrinfo(host.strip("[]"), None)[0]
    wanted = socket.inet_pton(family, str(address).partition("%")[0])
    if family is socket.AF_INET6:
        lines = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
        return next((line[-1] for line in lines if bytes.fromhex(line[0]) == wanted), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24] == wanted:
                    return name
    return None


def agree(refusal: PlexError | None) -> PlexError | None:
    """Return why the group refuses an operation, the same on all ranks; None if no rank refuses.

    A collective: every rank calls it once for each operation, before it changes anything; one small
    sum if none refuses. A final refusal counts more than one that may pass, then the lowest rank's.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return refusal
    device = "cuda" if torch.cuda.is_available() else "cpu"
    refusing = torch.tensor(int(refusal is not None), device=device)
    dist.all_reduce(refusing)
    if not refusing.item():
        return None
    told = b"" if refusal is None else wire_errors.to_wire(refusal).SerializeToString()
    found: list[bytes] = [b""] * dist.get_world_size()
    dist.all_gather_object(found, told)
    refusals = [_from_bytes(one) for one in found if one]
    return min(refusals, key=lambda one: one.retryable)


def say_why(error: Exception, told: PlexError) -> PlexError | None:
    """Say why this rank is about to leave its group; return the cause of the first that does.

    None: this rank lost a peer that has said nothing, so that peer is dead.
    """
    store, key = _meeting.store, _meeting.cause_key
    if store is None:
        return told
    mine = wire_errors.to_wire(told).SerializeToString().hex()
    is_of_peer = isinstance(error, dist.DistError) or "gloo" in str(error)  # a mere RuntimeError
    try:
        if is_of_peer and not store.check([key]):
            return None
        return _from_bytes(bytes.fromhex(store.compare_set(key, "", mine).decode()))
    except dist.DistError:
        return None  # the peer that keeps the store is dead


def leave() -> None:
    """Leave the group and all that were made of it; peers that wait in one of them hear of it."""
    _meeting.left.set()
    if not dist.is_initialized():
        return
    _hang_up(_meeting.sockets)
    # gloo hangs up with a group's last reference, which cycles of a failed pass may hold.
    gc.collect()
    if dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - destroying waits for its work
    else:
        dist.destroy_process_group()
    gc.collect()


def _hang_up(known: Collection[str]) -> None:
    """Shut the connections that were made since this process had the sockets that are `known`.

    gloo itself closes a group's connections only when the last reference to the group is gone, and
    torch keeps some in caches. Connections to listeners that were there before are not the group's.
    """
    ports = {sock.getsockname()[1] for name, sock in _sockets() if name in known}
    for name, sock in _sockets():
        if name not in known and sock.getsockname()[1] not in ports:
            with contextlib.suppress(OSError):  # the peer shut it first
                sock.getpeername()  # a listener has none: gloo ends the process if it is shut
                sock.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[str, socket.socket]]:
    """Yield this process's TCP sockets, each under the name that the kernel has for it."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed by now
            name = str(link.readlink())
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as sock:
                if sock.family in {socket.AF_INET, socket.AF_INET6}:
                    yield name, sock


def _watch(left: threading.Event) -> None:
    """Release this rank from what it waits for once a peer has left the group."""
    store, key = _meeting.store, _meeting.cause_key
    assert store is not None, "joined without a store"
    while not left.wait(WATCH_S):
        if store.check([key]):
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - as above
            return


def _from_bytes(told: bytes) -> PlexError:
    return wire_errors.from_wire(common_pb2.Error.FromString(told))

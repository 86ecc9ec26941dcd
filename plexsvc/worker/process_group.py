"""Process group of a WPG's ranks: joining it, and agreeing on what all of them refuse."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import importlib
import os
import socket
import struct
from typing import Final

import torch
import torch.distributed as dist

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.addresses import host_of
from plexsvc.worker.config import WorkerConfig

_SIOCGIFADDR: Final = 0x8915


def join(config: WorkerConfig) -> None:
    """Initialise torch.distributed: gloo on CPU, nccl on a GPU; blocks until all ranks are there.

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
        dist.init_process_group(
            backend,
            store=_meeting_place(config, timeout),
            rank=config.rank,
            world_size=config.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"rank {config.rank} of {config.wpg_id} did not find its {config.world_size - 1} peers "
            f"at {config.rendezvous!r}: {error}",
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
    if config.rank:
        return dist.TCPStore(host, int(port), config.world_size, timeout=timeout)
    listener = socket.create_server((host, int(port)))
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
    wanted = socket.inet_aton(socket.gethostbyname(host))
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
    refusals = [wire_errors.from_wire(common_pb2.Error.FromString(one)) for one in found if one]
    return min(refusals, key=lambda one: one.retryable)

"""Process group of a WPG's ranks: joining it, and agreeing on what all of them refuse."""

from __future__ import annotations

import datetime as dt

import torch
import torch.distributed as dist

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.config import WorkerConfig


def join(config: WorkerConfig) -> None:
    """Initialise torch.distributed: gloo on CPU, nccl on a GPU; blocks until all ranks are there.

    Raises:
        PlexError: `unavailable` when the ranks do not find each other in `collective_timeout_s`.
    """
    timeout = dt.timedelta(seconds=config.collective_timeout_s)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    try:
        if config.world_size == 1:
            dist.init_process_group(
                backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout
            )
            return
        dist.init_process_group(
            backend,
            init_method=config.rendezvous,
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

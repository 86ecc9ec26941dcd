"""Joining the ranks of a group into torch's process group."""

from __future__ import annotations

import datetime as dt

import torch
import torch.distributed as dist

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

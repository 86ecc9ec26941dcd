"""Joining the ranks of a WPG into one torch.distributed world."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from plexsvc.worker.config import WorkerConfig


def join(config: WorkerConfig) -> None:
    """Initialise the process group (gloo on CPU, nccl on GPU) at the configured rendezvous.

    A group of one needs no rendezvous.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=config.collective_timeout_s)
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

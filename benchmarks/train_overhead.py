"""forward_backward + step through the service against the same backend called directly.

Both run the same model, batch, plan and single thread; their iterations alternate, so that drift of
the machine hits both. Target: at 64 x 256 tokens the service keeps 98 % of the direct speed.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import plexclient as plex
from benchmarks import service
from tests.rigs.tiny_models import make_qwen3

CONFIG = """
[[nodes]]
node_id = "local"
devices = [{ kind = "train", bytes_total = 1073741824 }]
"""
LR = 1e-4
MICRO_BATCH_TOKENS = 4096


def batch(sequences: int, length: int) -> plex.Batch:
    """Return a fixed random batch with PPO inputs."""
    rng = np.random.default_rng(0)
    total = sequences * length
    return plex.Batch(
        tokens=rng.integers(2, 50, total).astype(np.int32),
        cu_seqlens=np.arange(0, total + 1, length, dtype=np.int32),
        target_tokens=rng.integers(2, 50, total).astype(np.int32),
        logprobs=np.full(total, -4.0, np.float32),
        advantages=np.full(total, 1 / total, np.float32),
        mask=np.ones(total, np.float32),
    )


def direct(model: str, pipe: Connection) -> None:
    """Run iterations on a backend in this process, one for each batch received."""
    import torch

    from plexclient.losses import find_loss
    from plexsvc.router import layout
    from plexsvc.worker import batches, losses
    from plexsvc.worker.backends import registry
    from plexsvc.worker.config import parse
    from plexsvc.worker.sources import open_checkpoint

    torch.set_num_threads(1)
    config = parse(
        {
            "wpg_id": "direct",
            "rank": 0,
            "world_size": 1,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "tenant": "direct",
            "job_id": "direct",
            "deployment_id": "direct",
            "role": "actor",
            "backend": "megatron",
            "model": model,
            "optimizer": {"lr": LR},
        }
    )
    backend = registry.create(config)
    backend.build()
    memory = {r.name: torch.zeros(r.nbytes, dtype=torch.uint8) for r in backend.regions()}
    with open_checkpoint(Path(model)) as weights:
        backend.attach(memory, weights)
    names = find_loss("ppo").arrays
    loss = losses.resolve("ppo", {"clip": 0.2}, role="actor")
    pipe.send("ready")
    while (arrays := pipe.recv()) is not None:
        lengths = np.diff(arrays["cu_seqlens"]).tolist()
        plan = layout.plan(lengths, dp=1, micro_batch_tokens=MICRO_BATCH_TOKENS)
        started = time.perf_counter()
        micro = batches.split(arrays, plan, names=names, shard=backend.shard)
        backend.forward_backward(micro, loss=loss, temperature=1.0, keep_outputs=False)
        backend.step(plex.AdamW(lr=LR))
        pipe.send(time.perf_counter() - started)


@contextlib.contextmanager
def direct_runner(model: Path) -> Iterator[Callable[[plex.Batch], float]]:
    """Yield a function that runs one direct iteration and returns its seconds."""
    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=direct, args=(str(model), theirs))
    process.start()
    assert ours.recv() == "ready"

    def run(given: plex.Batch) -> float:
        ours.send(given.arrays())
        return float(ours.recv())

    yield run
    ours.send(None)
    process.join()


def through_service(actor: Any, given: plex.Batch) -> float:
    """Run one iteration through the service; return its seconds as the client sees them."""
    started = time.perf_counter()
    actor.forward_backward(given, loss="ppo", clip=0.2)
    actor.step(lr=LR)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    sizes = {"64x256": batch(64, 256), "1x16": batch(1, 16)}
    figures: dict[str, object] = {"benchmark": "train_overhead", "backend": "megatron"}
    with tempfile.TemporaryDirectory() as scratch:
        model = make_qwen3(Path(scratch) / "model", seed=0, hidden=128, layers=4, heads=4, ffn=384)
        with (
            service.running(CONFIG) as cluster,
            cluster.job("overhead") as job,
            direct_runner(model) as run_direct,
        ):
            actor = job.deploy(
                "actor",
                model=model,
                backend="megatron",
                optimizer=plex.AdamW(lr=LR),
                micro_batch_tokens=MICRO_BATCH_TOKENS,
            )
            for name, given in sizes.items():
                run_direct(given), through_service(actor, given)
                repeats = arguments.repeats * (10 if name == "1x16" else 1)
                pairs = [(run_direct(given), through_service(actor, given)) for _ in range(repeats)]
                alone, served = (statistics.median(column) for column in zip(*pairs, strict=True))
                figures[name] = {
                    "direct_ms": round(alone * 1e3, 2),
                    "service_ms": round(served * 1e3, 2),
                    "overhead_ms": round((served - alone) * 1e3, 2),
                    "speed_ratio": round(statistics.median(a / b for a, b in pairs), 4),
                }
    service.report(**figures)


if __name__ == "__main__":
    main()

"""Jobs that train through the service on one device, which holds the state of one of them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks.state_rig import HALF_BILLION, random_model
from plexclient.specs import DEVICE
from plexsvc.node.discovery import GRANULE
from plexsvc.weights.random_model import ModelShape, device_bytes_for_one
from tests.rigs.live_cluster import LiveCluster, rank_processes, start_cluster
from tests.rigs.workloads import Program, run_interleaved

LAYOUTS: Final = (
    ("megatron", "float32", "device"),
    ("megatron", "bfloat16", "device"),
    ("fsdp", "float32", "device"),
    ("fsdp", "bfloat16", "device"),
    ("megatron", "bfloat16", "host"),
)
"""Backend, dtype and where the optimizer is; bfloat16 has masters in float32."""

PARKED_BYTES: Final = 2 << 30
"""What both ranks may keep on a GPU while they are parked, by the ranks' own estimate."""

PASS_BYTES: Final = 9 << 29
"""What a pass over 1,024 tokens takes beside the state, by the same estimate."""

Layout = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A service with one training device, and the model of its jobs."""

    live: LiveCluster
    connection: plex.Cluster
    model: Path
    place: Path
    """Where jobs save."""
    parameters: int
    tokens: int
    """Of a sequence, at most."""

    def deploy(self, job: plex.Job, layout: Layout, *, seed: int) -> plex.Actor:
        """Deploy an actor."""
        backend, dtype, on = layout
        actor: plex.Actor = job.deploy(
            "actor",
            model=str(self.model),
            backend=backend,
            dtype=dtype,
            optimizer=plex.AdamW(lr=1e-4, on=on),
            micro_batch_tokens=1024,
            seed=seed,
        )
        return actor

    def program(self, actor: plex.Actor, seed: int) -> Program:
        """Return three steps of two batches each, the same for the same seed."""
        return Program(actor, seed, lr=1e-4, sequences=32, longest=self.tokens)

    def alone(self, layout: Layout, *, seed: int) -> dict[str, str]:
        """Return the digest of the state that a job of its own ends with."""
        with self.connection.job(f"alone-{seed}") as job:
            actor = self.deploy(job, layout, seed=seed)
            run_interleaved([self.program(actor, seed)])
            return actor.digest()


@contextmanager
def site(memory: str) -> Iterator[Site]:
    """Yield a service on the first GPU, or on a CPU arena; it ends afterwards."""
    on_gpu = memory == "cuda"
    with tempfile.TemporaryDirectory(prefix="pxt") as name:
        place = Path(name)
        model, parameters = random_model(HALF_BILLION if on_gpu else ModelShape())
        room = device_bytes_for_one(parameters) + (PARKED_BYTES + PASS_BYTES if on_gpu else 0)
        room = -(-room // GRANULE) * GRANULE
        device = f'{{ kind = "train", memory = "{memory}", bytes_total = {room} }}'
        with (
            start_cluster(place, nodes={"local": [device]}, host_bytes=4 * room) as live,
            live.connect() as connection,
        ):
            yield Site(
                live=live,
                connection=connection,
                model=model,
                place=place,
                parameters=parameters,
                tokens=256 if on_gpu else 24,
            )


def compared(at: Site, layout: Layout) -> dict[str, object]:
    """Return whether two jobs that take turns on the device end as each does alone; and seconds.

    What the first saves, the second then loads: their states must be equal.
    """
    alone = [at.alone(layout, seed=seed) for seed in (0, 1)]
    with at.connection.job("first") as first, at.connection.job("second") as second:
        actors = [at.deploy(job, layout, seed=seed) for seed, job in enumerate((first, second))]
        before = _switched(at)
        programs = [at.program(actor, seed) for seed, actor in enumerate(actors)]
        train_s = _seconds(lambda: run_interleaved(programs))
        count, switch_s = (after - was for after, was in zip(_switched(at), before, strict=True))
        together = [actor.digest() for actor in actors]
        saved = at.place / "-".join(("saved", *layout))
        save_s = _seconds(lambda: actors[0].save(str(saved)))
        load_s = _seconds(lambda: actors[1].load(str(saved), optimizer=True))
        return {
            "equal_alone": together == alone,
            "have_different_programs": alone[0] != alone[1],
            "take_turns": count >= (12 if layout[-1] == DEVICE else 3),  # a step needs no device
            "load_what_was_saved": actors[1].digest() == together[0],
            "kinds": sorted(alone[0]),
            "switches": count,
            "switch_s": round(switch_s / count, 3),
            "train_s": train_s,
            "save_s": save_s,
            "load_s": load_s,
        }


def survived(at: Site, layout: Layout) -> dict[str, object]:
    """Return whether a job parked with open gradients outlives a kill of the resident's rank."""
    alone = at.alone(layout, seed=0)
    cause = ""
    with at.connection.job("survivor") as survivor:
        kept = at.deploy(survivor, layout, seed=0)
        rest = at.program(kept, 0).operations()
        next(rest)
        try:
            with at.connection.job("doomed") as job:
                doomed = at.deploy(job, layout, seed=1)
                next(at.program(doomed, 1).operations())
                (pid,) = rank_processes(at.live, [doomed.deployment_id])
                os.kill(pid, signal.SIGKILL)
                doomed.step()
        except plex.PlexError as error:
            cause = error.code
        for _ in rest:
            pass
        equals_alone = kept.digest() == alone
    return {"survivor_equals_alone": equals_alone, "cause_is_told": cause == "worker_died"}


def _switched(at: Site) -> tuple[int, float]:
    """Return the context switches so far and their seconds."""
    devices = at.live.status().devices
    return sum(one.switches for one in devices), sum(one.switch_us for one in devices) / 1e6


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return round(time.perf_counter() - started, 3)

"""Jobs that train through the service on one device, which holds the state of one of them."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import plexclient as plex
from benchmarks.state_rig import random_model
from plexclient.specs import DEVICE
from plexsvc import families, sizes
from plexsvc.node.discovery import GRANULE
from plexsvc.weights.random_model import ModelShape, device_bytes_for_one
from tests.rigs.live_cluster import LiveCluster, rank_processes, start_cluster
from tests.rigs.processes import running
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, run_interleaved

LAYOUTS: Final = (
    ("megatron", "float32", "device"),
    ("megatron", "bfloat16", "device"),
    ("fsdp", "float32", "device"),
    ("fsdp", "bfloat16", "device"),
    ("megatron", "bfloat16", "host"),
)
"""Backend, dtype and where the optimizer is; bfloat16 has masters in float32."""

SMALL: Final = ModelShape(
    hidden=1024, layers=4, heads=8, kv_heads=4, head_dim=128, ffn=4096, max_positions=512
)
MICRO_BATCH_TOKENS: Final = 1024

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
            micro_batch_tokens=MICRO_BATCH_TOKENS,
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
def site(memory: str, shape: ModelShape = SMALL) -> Iterator[Site]:
    """Yield a service on the first GPU, or on a CPU arena; it ends afterwards.

    Jobs have a model of `shape` on a GPU, and a tiny one on a CPU.
    """
    on_gpu = memory == "cuda"
    with tempfile.TemporaryDirectory(prefix="pxt") as name:
        place = Path(name)
        model, parameters = random_model(shape if on_gpu else ModelShape())
        room = device_bytes_for_one(parameters) + (_beside_state(model) if on_gpu else 0)
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


def _beside_state(model: Path) -> int:
    """Return what two processes keep on a GPU, and the largest pass, by the ranks' estimates."""
    largest = sizes.of_pass(
        families.read(model),
        backend="fsdp",
        dtype="float32",
        parallel=plex.Parallel(),
        tokens=MICRO_BATCH_TOKENS,
        recompute="",
        lora=None,
    )
    return 2 * sizes.CONTEXT_BYTES + largest


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


def adopted(at: Site, layout: Layout) -> dict[str, object]:
    """Return whether jobs whose state manager is killed twice end as each does alone.

    The first kill comes between two operations, the second into one.
    """
    alone = [at.alone(layout, seed=seed) for seed in (0, 1)]
    with at.connection.job("first") as first, at.connection.job("second") as second:
        actors = [at.deploy(job, layout, seed=seed) for seed, job in enumerate((first, second))]
        turns = [at.program(actor, seed).operations() for seed, actor in enumerate(actors)]
        for turn in turns:
            next(turn)
        replaced_s = _seconds(lambda: _replaced(at))
        for turn in turns:
            next(turn)
        meanwhile = threading.Timer(0.05, _replaced, [at])
        meanwhile.start()
        while turns:
            turns = [turn for turn in turns if next(turn, StopIteration) is None]
        meanwhile.join()
        return {
            "equal_alone": [actor.digest() for actor in actors] == alone,
            "replaced_s": replaced_s,
        }


def _replaced(at: Site) -> None:
    """Kill -9 the state manager; return when it has a successor."""

    def found() -> list[int]:
        return running("plexsvc.statemanager.main", below=at.live.pid)

    before = found()
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: found() not in ([], before), what="a successor runs")


def _switched(at: Site) -> tuple[int, float]:
    """Return the context switches so far and their seconds."""
    devices = at.live.status().devices
    return sum(one.switches for one in devices), sum(one.switch_us for one in devices) / 1e6


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return round(time.perf_counter() - started, 3)

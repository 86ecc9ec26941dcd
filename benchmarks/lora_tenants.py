"""Tenants with adapters on one model: how fast a further one joins, what it takes, who has room.

    python -m benchmarks.lora_tenants [--tenants 16] [--steps 2]

A real service on one device. Each tenant is a job of its own with adapters on the same tiny model.
They join one after the other, then train all at once; two of them are compared, bit for bit, with
runs alone. What is admitted by bytes is counted by the planner's own books, for a larger model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import plexclient as plex
from plexclient.specs import Parallel
from plexsvc import sizes
from plexsvc.ids import ResidentId, UnitId
from plexsvc.lora import Lora
from plexsvc.scheduler.core.planning.memory import GIB, HostMemory
from plexsvc.scheduler.core.planning.profile import GUESS, Demand
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from tests.rigs.live_cluster import MIB, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import Program, run_interleaved

DEVICE = f'{{ kind = "train", bytes_total = {256 * MIB} }}'
SCHEDULER = SHARES_ALL + "max_deployments_per_group = 64\n"
RANK = 4
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def deploy(job: plex.Job, model: Path, *, seed: int) -> plex.Actor:
    """Return a tenant's deployment, ready."""
    actor: plex.Actor = job.deploy(
        "actor",
        role="actor",
        model=str(model),
        backend="fsdp",
        dtype="bfloat16",
        lora=plex.LoRA(rank=RANK),
        optimizer=plex.AdamW(lr=1e-2),
        micro_batch_tokens=64,
        seed=seed,
    )
    return actor


def alone(cluster: plex.Cluster, model: Path, *, seed: int, steps: int) -> tuple[Any, int]:
    """Return the digest of a tenant that nobody is beside, and its host bytes."""
    with cluster.job(f"alone-{seed}") as job:
        actor = deploy(job, model, seed=seed)
        run_interleaved([Program(actor, seed, steps=steps)])
        return actor.digest(), actor.info.state_bytes


def host_bytes(live: LiveCluster) -> int:
    """Return the host bytes that are booked, once the service knows of the latest."""
    time.sleep(3.0)  # noqa: TID251 - nodes are asked every second
    return sum(node.host_bytes_used for node in live.status().nodes)


@contextmanager
def joined(
    cluster: plex.Cluster, model: Path, *, tenants: int
) -> Iterator[tuple[list[plex.Actor], list[float]]]:
    """Have tenants join one after the other; give their deployments, and what each join took."""
    actors, took_s = [], []
    with ExitStack() as stack:
        for seed in range(tenants):
            job = stack.enter_context(cluster.job(f"tenant-{seed}"))
            begun_s = time.perf_counter()
            actors.append(deploy(job, model, seed=seed))
            took_s.append(time.perf_counter() - begun_s)
        yield actors, took_s


def live_tenants(live: LiveCluster, model: Path, *, tenants: int, steps: int) -> dict[str, Any]:
    """Return how tenants joined, what they take, and whether all of their steps passed."""
    with live.connect() as cluster:
        compared = {seed: alone(cluster, model, seed=seed, steps=steps) for seed in (0, 1)}
        with joined(cluster, model, tenants=1):
            first_bytes = host_bytes(live)
        with joined(cluster, model, tenants=tenants) as (actors, took_s):
            all_bytes = host_bytes(live)
            programs = [Program(actor, seed, steps=steps) for seed, actor in enumerate(actors)]
            begun_s = time.perf_counter()
            with ThreadPoolExecutor(tenants) as pool:
                list(pool.map(lambda program: run_interleaved([program]), programs))
            trained_s = time.perf_counter() - begun_s
            device = live.status().devices[0]
            same = [actors[seed].digest() == digest for seed, (digest, _) in compared.items()]
    further = took_s[1:]
    own = compared[0][1]
    return {
        "tenants": tenants,
        "steps_passed": sum(len(program.metrics) // 3 for program in programs),
        "steps_s": round(trained_s, 1),
        "switches": device.switches,
        "bits_as_alone": all(same),
        "first_join_s": round(took_s[0], 2),
        "further_join_s": {
            "median": round(statistics.median(further), 2),
            "worst": round(max(further), 2),
        },
        "host_bytes": {
            "first": first_bytes,
            "each_further": (all_bytes - first_bytes) // (tenants - 1),
            "own_state": own,
        },
    }


def admitted(host_gib: int, *, shares: bool, rank: int = 32) -> int:
    """Return how many tenants of an 8B model a host of one device has room for by the books."""
    lora = Lora(rank=rank, alpha=32.0)
    found = sizes.of(
        QWEN3_8B, backend="fsdp", dtype="bfloat16", parallel=Parallel(), is_trained=True, lora=lora
    )
    unit, memory = UnitId("host:0"), HostMemory()
    memory.grow(UnitRoom(unit_id=unit, host="host", parked_bytes=host_gib * GIB), 1)
    for number in range(10_000):
        demand = Demand(
            resident_id=ResidentId(str(number)),
            num_units=1,
            profile=GUESS,
            state_bytes=found.state - (found.frozen if shares else 0),
            version_bytes=3 * found.version,
            model="8B" if shares else "",
            model_bytes=found.frozen if shares else 0,
        )
        if not memory.holds([unit], demand):
            return number
        memory.book(demand, [unit])
    raise AssertionError("a host has no end")


def main() -> None:
    """Measure and print, a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    for host_gib in (128, 256):
        counts = {name: admitted(host_gib, shares=name == "shared") for name in ("shared", "own")}
        print(json.dumps({"admitted_by_bytes": counts, "host_gib": host_gib}), flush=True)
    with tempfile.TemporaryDirectory() as place:
        model = make_qwen3(Path(place) / "tiny", seed=1, hidden=256, layers=4, ffn=1024)
        with start_cluster(
            Path(place), nodes={"only": [DEVICE]}, scheduler=SCHEDULER, host_bytes=1024 * MIB
        ) as live:
            found = live_tenants(live, model, tenants=given.tenants, steps=given.steps)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

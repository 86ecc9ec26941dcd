"""What moving a live training deployment costs: how long it takes, and how long its job is held.

    python -m benchmarks.relocation [--widths 64 1024] [--moves 5]

A service with two nodes of one device each; one megatron deployment (fsdp gives the same path) is
moved to and fro while nothing else runs. `spawn_s` is the time its new processes take to come up,
during which the job works on; `held_s` is what the job loses: `copy_s` for the complete copy with
checksums, `restore_s` until the new ranks have read, verified and taken it over. `carried_bytes`
are parameters and moments. Both nodes are on this host, so the copy is mapped and not streamed. One
JSON line a model; medians and the worst of all moves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import plexclient as plex
from plexsvc.scheduler.core.actions import CarryState
from plexsvc.scheduler.core.vocabulary import RelocationStage
from plexsvc.scheduler.orders import carry
from plexsvc.scheduler.orders.reach import Reach
from tests.rigs.inner_cluster import InnerCluster, node, start_inner
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import fixed_batch

GIB = 1 << 30
STAGES = (RelocationStage.WAITING, RelocationStage.CARRYING, RelocationStage.RESTORING)


def move(inner: InnerCluster, actor: plex.Deployment, to: str) -> dict[str, float]:
    """Move a deployment and return how long each part took, in seconds."""
    at_s: dict[str, float] = {}
    for stage in STAGES:
        inner.on_stage[stage] = lambda stage=stage: at_s.setdefault(stage, time.monotonic())
    start_s = time.monotonic()
    inner.relocate(actor, (to, 0))
    ended = inner.wait()
    end_s = time.monotonic()
    assert ended.stage is RelocationStage.DONE, ended
    return {
        "spawn_s": at_s["waiting"] - start_s,
        "copy_s": at_s["restoring"] - at_s["carrying"],
        "restore_s": end_s - at_s["restoring"],
        "held_s": end_s - at_s["carrying"],
        "total_s": end_s - start_s,
    }


def note_sizes() -> list[int]:
    """Return a list to which each copy's bytes will be added."""
    sizes: list[int] = []
    copy = carry.carry

    async def noted(reach: Reach, action: CarryState) -> int:
        sizes.append(await copy(reach, action))
        return sizes[-1]

    carry.carry = noted
    return sizes


def measure(directory: Path, *, width: int, moves: int) -> dict[str, object]:
    """Return the figures of one model."""
    model = make_qwen3(
        directory / f"model-{width}", seed=0, hidden=width, ffn=4 * width, head_dim=64
    )
    sizes = note_sizes()
    nodes = tuple(node(name, device_bytes=4 * GIB) for name in ("left", "right"))
    with (
        start_inner(directory / f"cluster-{width}", nodes=nodes) as inner,
        inner.connect() as connection,
        connection.job("moved") as job,
    ):
        actor = job.deploy(
            "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-3)
        )
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        before = actor.digest()
        names = ("right", "left")
        found = [move(inner, actor, names[at % 2]) for at in range(moves)]
        assert actor.digest() == before
    figures: dict[str, object] = {"width": width, "carried_bytes": sizes[-1], "moves": moves}
    for name in found[0]:
        values = [one[name] for one in found]
        figures[name] = round(statistics.median(values), 3)
        figures[f"worst_{name}"] = round(max(values), 3)
    return figures


def main() -> None:
    """Print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--moves", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plex-relocation-") as directory:
        for width in given.widths:
            figures = measure(Path(directory), width=width, moves=given.moves)
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

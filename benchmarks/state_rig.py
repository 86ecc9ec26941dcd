"""A state manager and its clients for benchmarks of device memory, on a CPU arena or a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
)
from plexsvc.ids import DeploymentId, JobId, VersionId, WpgId
from plexsvc.node.sidecar import LARGE_COPIES
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.statelink.client import MoveHandlers, Region, RegionSpec, StateClient
from plexsvc.weights.random_model import ModelShape, make_model
from plexsvc.worker.config import WorkerConfig, parse
from tests.rigs.keys import KEYS, keys_file

DEADLINE_S: Final = 120
TENSORS: Final = 290
"""Tensors of a model of half a billion parameters."""

BILLION: Final = ModelShape(
    hidden=2048, layers=16, heads=16, kv_heads=8, head_dim=128, ffn=8192, max_positions=512
)
HALF_BILLION: Final = ModelShape(
    hidden=1024, layers=32, heads=8, kv_heads=4, head_dim=128, ffn=4096, max_positions=512
)


@dataclass(slots=True, kw_only=True)
class Client:
    """A client of a state manager."""

    wpg_id: str
    stub: statemanager_pb2_grpc.StateManagerStub
    connection: StateClient
    region: Region | None = None

    def offload(self) -> dict[str, int]:
        """Park its state."""
        return self._move(common_pb2.RESIDENCY_HOST)

    def load(self) -> dict[str, int]:
        """Bring its state back."""
        return self._move(common_pb2.RESIDENCY_DEVICE)

    def _move(self, to: common_pb2.Residency) -> dict[str, int]:
        fence = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
        request = statemanager_pb2.MoveRequest(wpg_id=self.wpg_id, fence=fence, to=to)
        reply = self.stub.Move(request, timeout=DEADLINE_S)
        if reply.HasField("error"):
            raise RuntimeError(reply.error.message)
        return {"copy_us": reply.copy_us, "total_us": reply.total_us}


@contextmanager
def state_manager(
    memory: str, *, budget: int
) -> Iterator[tuple[statemanager_pb2_grpc.StateManagerStub, str]]:
    """Yield the stub and the data socket of one whose device has `budget` bytes, its host twice."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pxr")))
        config = place / "sm.toml"
        granule = 2 << 20
        rounded = -(-budget // granule) * granule
        config.write_text(
            f'node_id = "bench"\nruntime_dir = "{place}"\nhost_bytes = {2 * rounded}\n'
            f'keys_file = "{keys_file(place)}"\n'
            f'[[devices]]\nindex = 0\nbytes_total = {rounded}\nmemory = "{memory}"\n'
        )
        argv = [sys.executable, "-m", "plexsvc.statemanager.main", "--config", str(config)]
        env = {**os.environ, **LARGE_COPIES}  # noqa: TID251 - its own, for a child
        daemon = stack.enter_context(
            subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
        )
        stack.callback(daemon.kill)
        assert daemon.stdout is not None
        ready = json.loads(daemon.stdout.readline())
        channel = stack.enter_context(open_blocking_channel(ready["address"], KEYS))
        yield statemanager_pb2_grpc.StateManagerStub(channel), ready["data_socket"]


@contextmanager
def one_client(
    memory: str, *, nbytes: int, budget: int, handlers: MoveHandlers | None = None
) -> Iterator[Client]:
    """Yield the client of a state manager whose device has `budget` bytes.

    It has a region of `nbytes` (0: none yet).
    """
    with (
        state_manager(memory, budget=budget) as (stub, socket),
        _joined(stub, socket, "w", nbytes=nbytes, handlers=handlers) as found,
    ):
        yield found


@contextmanager
def _joined(
    stub: statemanager_pb2_grpc.StateManagerStub,
    socket: str,
    wpg_id: str,
    *,
    nbytes: int,
    handlers: MoveHandlers | None = None,
) -> Iterator[Client]:
    connection = StateClient(socket, member(wpg_id=wpg_id), handlers=handlers)
    try:
        found = Client(wpg_id=wpg_id, stub=stub, connection=connection)
        if nbytes:
            found.region = connection.allocate([RegionSpec(name="params", nbytes=nbytes)])["params"]
        yield found
    finally:
        connection.close()


def switched(memory: str, *, nbytes: int, rounds: int = 3) -> dict[str, float]:
    """Return seconds of moves of two states of `nbytes` on a device with room for both.

    `allocate` makes one, its page-locked host copy included; `out` and `back` copy one alone,
    `whole` is one out and then one in with all that belongs to it, `both` the same two at once.
    """
    with ExitStack() as stack:
        stub, socket = stack.enter_context(state_manager(memory, budget=2 * nbytes))
        started = time.perf_counter()
        clients = [
            stack.enter_context(_joined(stub, socket, name, nbytes=nbytes)) for name in ("v", "w")
        ]
        allocate = (time.perf_counter() - started) / 2
        for client in clients:
            assert client.region is not None, "it was asked for"
            client.region.tensor().random_(0, 256)  # zeros may be copied faster than states
        going, coming = clients
        coming.offload()
        pool = stack.enter_context(ThreadPoolExecutor(2))
        found: list[dict[str, float]] = []
        for _ in range(1 + rounds):
            off, on = going.offload(), coming.load()
            off_us, on_us = off["copy_us"], on["copy_us"]
            started = time.perf_counter()
            for move in [pool.submit(coming.offload), pool.submit(going.load)]:
                move.result()
            found.append(
                {
                    "out": off_us / 1e6,
                    "back": on_us / 1e6,
                    "whole": (off["total_us"] + on["total_us"]) / 1e6,
                    "both": time.perf_counter() - started,
                }
            )
    best = {name: min(one[name] for one in found[1:]) for name in found[0]}
    return {"allocate": allocate, **best}


def member(**facts: Any) -> WorkerConfig:
    who: dict[str, Any] = {"wpg_id": "w", "rank": 0, "world_size": 1, "incarnation": 1}
    who["scheduler_epoch"] = 1
    what = {
        "tenant": "t",
        "job_id": "j",
        "deployment_id": "d",
        "role": "actor",
        "backend": "noop",
        "model": "",
    }
    return parse({**who, **what, **facts})


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank in this process, with its state manager."""

    executor: Any
    client: Client
    batch: list[Any]
    loss: Any
    parameters: int

    def step(self) -> int:
        """Run forward_backward and step; return the tokens."""
        from plexclient.specs import AdamW

        backend = self.executor.backend
        backend.forward_backward(self.batch, loss=self.loss, temperature=1.0, keep_outputs=False)
        backend.plan_step(AdamW(lr=1e-4))()
        return sum(micro.num_tokens for micro in self.batch)


@contextmanager
def trained_rank(memory: str, backend: str = "megatron", dtype: str = "float32") -> Iterator[Rank]:
    """Yield a rank on its own state manager, with a batch of 64 sequences."""
    import plexsvc.worker.preload  # noqa: F401 - before Megatron, as a zygote does
    from plexsvc.clock import SystemClock
    from plexsvc.worker import losses
    from plexsvc.worker.backends import registry
    from plexsvc.worker.executor import Executor

    model, parameters = random_model(BILLION if memory == "cuda" else ModelShape())
    config = member(
        backend=backend,
        model=str(model),
        dtype=dtype,
        optimizer={"lr": 1e-4},
    )
    executor = Executor(config, registry.create(config), clock=SystemClock())
    budget = 20 * parameters + (64 << 20)
    with one_client(memory, nbytes=0, budget=budget, handlers=executor) as client:
        executor.build(client.connection)
        begin = operations_pb2.Initialize()
        operation = operations_pb2.Operation(operation_id=b"i" * 16, seq=0, initialize=begin)
        request = worker_pb2.ExecuteRequest(operation=operation)
        error = executor.execute(request).reply.result.error
        if error.code:
            raise RuntimeError(error.message)
        loss = losses.resolve("cross_entropy", {}, role="actor")
        yield Rank(
            executor=executor,
            client=client,
            batch=_batch(),
            loss=loss,
            parameters=parameters,
        )


def random_model(shape: ModelShape) -> tuple[Path, int]:
    """Return the directory of a random model, and its parameters; made once for all probes.

    It lies in the temporary directory, which the program around the probes removes.
    """
    model = Path(tempfile.gettempdir()) / f"model-{shape.hidden}x{shape.layers}"
    counted = model / "parameters"
    if not counted.exists():
        shutil.rmtree(model, ignore_errors=True)
        counted.write_text(str(make_model(model, seed=0, shape=shape)))
    return model, int(counted.read_text())


def _batch() -> list[Any]:
    from plexclient.losses import find_loss
    from plexsvc.router import layout
    from plexsvc.worker import batches
    from plexsvc.worker.backends.base import DataShard

    rng, total = np.random.default_rng(0), 64 * 128
    arrays = {
        "cu_seqlens": np.arange(0, total + 1, 128, dtype=np.int32),
        "tokens": rng.integers(2, 60, total).astype(np.int32),
        "target_tokens": rng.integers(2, 60, total).astype(np.int32),
        "weights": np.ones(total, np.float32),
    }
    lengths = np.diff(arrays["cu_seqlens"]).tolist()
    plan = layout.plan(lengths, dp=1, micro_batch_tokens=4096)
    shard = DataShard(dp_rank=0, dp_size=1, owns_results=True)
    return batches.split(arrays, plan, names=find_loss("cross_entropy").arrays, shard=shard)


def published(memory: str, *, nbytes: int) -> dict[str, object]:
    """Publish `nbytes` of tensors three times from a node in this process; count GPU copies."""
    from plexsvc.statelink import cuda
    from plexsvc.statelink.client import ExportReport
    from plexsvc.statemanager import snapshot
    from plexsvc.statemanager.book import Book
    from plexsvc.statemanager.caller import WaitingCaller
    from plexsvc.statemanager.config import StateManagerConfig, TierConfig
    from plexsvc.statemanager.links import RankLink
    from plexsvc.statemanager.memory import RankMemory
    from plexsvc.statemanager.node import ManagedNode, region_state

    class Quiet(RankLink):
        def export(self, *, beside: bool = False) -> ExportReport:
            del beside
            return self.last_export

    copied = 0
    if memory == "cuda":
        driver = cuda.open_driver(0)
        to_host = driver.to_host

        def counted(target: int, address: int, nbytes: int) -> None:
            nonlocal copied
            copied += nbytes
            to_host(target, address, nbytes)

        driver.to_host = counted  # type: ignore[method-assign]  # what is counted is the point
    with tempfile.TemporaryDirectory() as place:
        device = TierConfig(index=0, bytes_total=nbytes + (4 << 20), memory=memory)
        config = StateManagerConfig(node_id="n", runtime_dir=Path(place), devices=(device,))
        node, wpg = ManagedNode(config, book=Book(), arenas={}), WpgId("w")
        node.ledger.register(wpg, rank=0, incarnation=1, device_index=0, job_id=JobId("j"))
        rank = RankMemory(node.tiers[0])
        link = Quiet(None, client_id=1, wpg_id=wpg, rank=0, job_id=JobId("j"), memory=rank)
        node.links[wpg, 0] = link
        granule = rank.tier.granule_bytes
        node.allocate(link, [region_state("params", nbytes, is_droppable=False, granule=granule)])
        node.set_index(link, tensor_pieces(nbytes))
        took, published_bytes = list[float](), 0
        for version in (1, 2, 3):
            started = time.perf_counter()
            taken, key = snapshot.take(node, wpg), VersionId(DeploymentId("d"), 1, version)
            draft = node.publisher.draft(
                key, taken.index, job_id=JobId("j"), region=taken.region, progress=None
            )
            published_bytes += node.publisher.enter(draft, WaitingCaller()).nbytes
            took.append(time.perf_counter() - started)
        node.close()
    return {
        "tensors": TENSORS,
        "published_bytes": published_bytes,
        "copied_off_bytes": copied if memory == "cuda" else None,
        "copied_over_published": round(copied / published_bytes, 3) if memory == "cuda" else None,
        "gib_per_s": [round(published_bytes / 3 / one / 2**30, 2) for one in took],
    }


def tensor_pieces(nbytes: int) -> list[statemanager_pb2.CanonicalPiece]:
    numel = nbytes // TENSORS // 256 * 64
    return [
        statemanager_pb2.CanonicalPiece(
            name=f"t{at}",
            offset=at * numel * 4,
            kind="param",
            dtype="F32",
            region="params",
            global_shape=[numel],
            start=[0],
            size=[numel],
            stride=[1],
        )
        for at in range(TENSORS)
    ]

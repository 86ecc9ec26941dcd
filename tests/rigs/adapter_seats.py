"""Seats of an engine that adapters share, and adapters to load there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import rollout_pb2, rollout_pb2_grpc
from plexsvc import families, lora
from plexsvc.rpc.channels import open_channel
from tests.rigs.engine_contract import TIMEOUT_S, Stub
from tests.rigs.keys import KEYS
from tests.rigs.rollout_requests import FENCE
from tests.rigs.vllm_process import lying_in, publish_arrays

Arrays = dict[str, npt.NDArray[np.float32]]


@asynccontextmanager
async def seat(engine: str, name: str, place: Path) -> AsyncIterator[Stub]:
    """Take a seat for a deployment and leave it again."""
    keys = Path(engine.removeprefix("unix:")).with_name("keys.json")
    config = {
        "wpg_id": name,
        "rank": 0,
        "incarnation": 1,
        "scheduler_epoch": 1,
        "tenant": name,
        "job_id": name,
        "deployment_id": name,
        "model": "",
        "listen": f"unix:{place}/{name}.sock",
        "keys_file": str(next(keys.parent.glob("*key*"))),
    }
    async with open_channel(engine, KEYS) as channel:
        shared = rollout_pb2_grpc.SharedEngineStub(channel)
        asked = rollout_pb2.TakeSeatRequest(proc_id=f"{name}/0", config_json=json.dumps(config))
        taken = await shared.TakeSeat(asked, timeout=TIMEOUT_S)
        if taken.HasField("error"):
            raise from_wire(taken.error)
        try:
            async with open_channel(taken.address, KEYS) as own:
                yield rollout_pb2_grpc.RolloutInstanceStub(own)
        finally:
            left = rollout_pb2.LeaveSeatRequest(proc_id=f"{name}/0")
            await shared.LeaveSeat(left, timeout=TIMEOUT_S)


def adapters(model: Path, *, seed: int, rank: int = 4) -> Arrays:
    """Return adapters of all linear layers whose answers differ from the model's."""
    rng, table = np.random.default_rng(seed), families.read(model)
    made: Arrays = {lora.SCALE: np.array([2.0], np.float32)}
    for layer in range(int(table["num_hidden_layers"])):
        for name, (out, inner) in lora.linears(table).items():
            part = "mlp" if name in {"gate_proj", "up_proj", "down_proj"} else "self_attn"
            a, b = lora.names_of(f"model.layers.{layer}.{part}.{name}.weight")
            made[a] = rng.normal(scale=0.1, size=(rank, inner)).astype(np.float32)
            made[b] = rng.normal(scale=0.1, size=(out, rank)).astype(np.float32)
    return made


async def load(
    stub: Stub, file: Path, arrays: Arrays, *, version: int
) -> rollout_pb2.LoadVersionReply:
    publish_arrays(file, arrays, version=version)
    asked = rollout_pb2.LoadVersionRequest(fence=FENCE, published=lying_in(file, version=version))
    return await stub.LoadVersion(asked, timeout=TIMEOUT_S)

"""A real vLLM instance in a process of its own, forked like a rank; versions come from files.

Run as `python -m tests.rigs.vllm_process CONFIG_JSON`: prints the address on its first line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plexclient.wire.v1 import statemanager_pb2
from plexsvc import config as config_files
from plexsvc.rollout.preload import ZYGOTE_ENV, preload
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.reading import OpenedPart, OpenedVersion
from tests.rigs.keys import keys_file

ROOT = Path(__file__).parents[2]


@contextmanager
def vllm_instance(
    model: Path, *, sabotage: Path | None = None, exit_code: int = 0, **config: object
) -> Iterator[str]:
    """Yield the address of a real instance serving `model`; it ends with the block.

    From when the file `sabotage` is there, vLLM fails: in each step, or with "load" in the file's
    name, when weights have been replaced.
    """
    place = Path(tempfile.mkdtemp())
    facts = {
        "wpg_id": "wpg",
        "rank": 0,
        "incarnation": 1,
        "scheduler_epoch": 1,
        "tenant": "tenant",
        "job_id": "job",
        "deployment_id": "rollout",
        "model": str(model),
        "max_model_len": 128,
        "kv_cache_bytes": 16 << 20,
        "max_num_seqs": 32,
        "listen": f"unix:{place}/instance.sock",
        "keys_file": str(keys_file(place)),
    } | config
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rigs.vllm_process", json.dumps(facts), str(sabotage or "")],
        stdout=subprocess.PIPE,
        env=os.environ | dict(ZYGOTE_ENV) | {"PYTHONPATH": f"{ROOT}:{ROOT}/client"},  # noqa: TID251 - a child's environment
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, f"the instance ended with {process.wait()}"
        yield address
    finally:
        if not exit_code:
            process.terminate()
        code = process.wait(timeout=30)
        process.stdout.close()
        shutil.rmtree(place)
    assert code == exit_code, f"the instance ended with {code}"


def publish_arrays(
    file: Path,
    arrays: dict[str, npt.NDArray[np.float32]],
    *,
    version: int,
    source: str = "actor",
    shards: int = 1,
) -> statemanager_pb2.VersionManifest:
    """Write a version as `shards` ranks would publish it: rows split, vectors copied by each.

    Names are `kind/name`, those of parameters plain.
    """
    manifest = statemanager_pb2.VersionManifest(deployment_id=source, version=version)
    data = bytearray()
    for rank in range(shards):
        for name, array in arrays.items():
            parts = np.array_split(array, shards) if array.ndim > 1 else [array] * shards
            start = sum(len(part) for part in parts[:rank]) if array.ndim > 1 else 0
            part = np.ascontiguousarray(parts[rank])
            manifest.pieces.add(
                kind=name.rpartition("/")[0] or "param",
                name=name.rpartition("/")[2],
                global_shape=array.shape,
                start=[start, *[0] * (array.ndim - 1)],
                size=part.shape,
                dtype="F32",
                region="params",
                offset=len(data),
                stride=[n // 4 for n in part.strides],
                rank=rank,
            )
            data += part.tobytes()
            data += bytes(-len(data) % 64)
    file.write_bytes(data)
    manifest.nbytes = len(data)
    manifest.block_checksums.extend(block_checksums(memoryview(data)))
    file.with_suffix(".manifest").write_bytes(manifest.SerializeToString())
    return manifest


def lying_in(
    file: Path, *, version: int, source: str = "actor"
) -> statemanager_pb2.PublishedVersion:
    """Return a version that `publish_arrays` wrote as a scheduler would send it."""
    holder = statemanager_pb2.VersionHolder(data_socket=str(file))
    return statemanager_pb2.PublishedVersion(
        deployment_id=source, version=version, holders=[holder]
    )


def open_files(version: statemanager_pb2.PublishedVersion) -> OpenedVersion:
    opened = OpenedVersion()
    for holder in version.holders:
        file = Path(holder.data_socket)
        text = file.with_suffix(".manifest").read_bytes()
        manifest = statemanager_pb2.VersionManifest.FromString(text)
        opened.manifests.append(manifest)
        opened.parts.append(OpenedPart(manifest=manifest, data=_map_file(file)))
    return opened


def _map_file(path: Path) -> memoryview:
    with path.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ))


def _sabotage(file: Path) -> None:
    """Let vLLM fail from when `file` is there."""
    from vllm.v1.engine.core import EngineCore

    is_load = file.name == "load"
    name = "reset_prefix_cache" if is_load else "post_step"
    original = getattr(EngineCore, name)

    def fail(self: EngineCore, *args: Any, **kwargs: Any) -> Any:
        if file.exists() and (kwargs or not is_load):
            raise RuntimeError("sabotaged")
        return original(self, *args, **kwargs)

    setattr(EngineCore, name, fail)


def _child(config: dict[str, Any], *, sabotage: str) -> None:
    from plexsvc.rollout.config import InstanceConfig
    from plexsvc.rollout.instance import run_vllm

    def ready(address: str) -> None:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()

    if sabotage:
        _sabotage(Path(sabotage))
    parsed = config_files.parse(config, InstanceConfig, where="test")
    asyncio.run(run_vllm(parsed, ready, open_version=open_files))


def _main() -> int:
    preload()
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a zygote with {threads} threads must not fork"
    child = os.fork()
    if not child:
        _child(json.loads(sys.argv[1]), sabotage=sys.argv[2])
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(_main())

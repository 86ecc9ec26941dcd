"""A real vLLM instance in a process of its own, forked like a rank; versions come from files.

Run as `python -m tests.rigs.vllm_process` it imports vLLM once, and forks an instance for each line
that it reads.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
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
from tests.rigs.processes import descendants

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
    log = place / "instance.log"
    pid, address = _ask("start", facts, str(sabotage or ""), str(log))
    try:
        assert address, f"the instance ended with {_ask('end', pid, 0)}"
        yield address
    finally:
        code = _ask("end", pid, 0 if exit_code else signal.SIGTERM) if address else exit_code
        sys.stderr.write(log.read_text())
        shutil.rmtree(place)
    assert code == exit_code, f"the instance ended with {code}"


def instances() -> set[int]:
    """Return the processes of the instances that run."""
    return set(descendants(_host().pid))


@cache
def _host() -> subprocess.Popen[str]:
    """Start what instances are forked from; it ends with this process."""
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.rigs.vllm_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | dict(ZYGOTE_ENV) | {"PYTHONPATH": f"{ROOT}:{ROOT}/client"},  # noqa: TID251 - a child's environment
        text=True,
    )
    atexit.register(host.communicate)  # it reads the end of its orders
    return host


def _ask(*order: object) -> Any:
    host = _host()
    assert host.stdin is not None
    assert host.stdout is not None
    host.stdin.write(json.dumps(order) + "\n")
    host.stdin.flush()
    return json.loads(host.stdout.readline())


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
    opened = OpenedVersion(published=version)
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


def _child(config: dict[str, Any], *, sabotage: str, said: int) -> None:
    from plexsvc.rollout import seats
    from plexsvc.rollout.config import InstanceConfig
    from plexsvc.rollout.instance import run_vllm

    def ready(address: str) -> None:
        os.write(said, f"{address}\n".encode())

    if sabotage:
        _sabotage(Path(sabotage))
    parsed = config_files.parse(config, InstanceConfig, where="test")
    opener = lambda _: nullcontext(open_files)  # noqa: E731
    if parsed.lora_rank:
        asyncio.run(seats.run_vllm(parsed, ready, opener=opener))
        return
    asyncio.run(run_vllm(parsed, ready, opener=opener))


def _fork(config: dict[str, Any], sabotage: str, log: str) -> tuple[int, str]:
    """Return an instance's process and its address, which is empty if it ended before."""
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(heard)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            _child(config, sabotage=sabotage, said=said)
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except BaseException:  # noqa: BLE001 - the child's outermost frame
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(said)
    with os.fdopen(heard) as pipe:
        return child, pipe.readline().strip()


def _main() -> None:
    preload()
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a zygote with {threads} threads must not fork"
    children: set[int] = set()
    for line in sys.stdin:
        match json.loads(line):
            case ["start", config, sabotage, log]:
                answer: Any = _fork(config, sabotage, log)
                children.add(answer[0])
            case ["end", pid, number]:
                os.kill(pid, number)
                answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                children.discard(pid)
            case other:
                raise ValueError(other)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    _main()

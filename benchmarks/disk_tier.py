"""Speed of the disk tier against the disk's own, and of switches whose state was there.

    python -m benchmarks.disk_tier [--mib 1024] [--rounds 5] [--directory DIR]

First a region in host memory is written to disk and read back as the state manager does, with a
checksum for each block. The limit is measured in the same rounds: plain reads and writes of blocks
of the same size, as many at once, by direct I/O on a new file of the same directory, without
checksums. The best round counts, medians stand beside.

Then three clients of a real state manager take turns on a device that holds one of them, each turn
once the others have stood still: with host memory for all three; for two, each back in memory
before its turn (`prefetched`); and for one, moved between device and disk (`not prefetched`).
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import service
from benchmarks.context_switch import HERE, read_line, spawn
from plexclient.wire.v1 import common_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.statemanager.disk import DEPTH, Disk, blocks
from plexsvc.statemanager.hostcopy import HostCopy
from tests.rigs.keys import KEYS, keys_file

MIB: Final = 1 << 20
DEADLINE_S: Final = 120
TURNS: Final = "abc"


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copies(nbytes: int, *, directory: Path, rounds: int) -> dict[str, Any]:
    """Return GB/s each way, of the state manager's copies and of plain direct I/O."""
    disk, memory = Disk(directory), mmap.mmap(-1, nbytes)
    data = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    memory[:] = data.tobytes()
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        host = HostCopy(nbytes, disk=disk)
        host.view()[:] = data
        took.setdefault("write", []).append(timed(lambda host=host: host.to_disk(0)))
        host.split = 0
        host.let_go()
        took.setdefault("read", []).append(timed(lambda host=host: host.from_disk(nbytes)))
        host.split = nbytes
        host.let_go()
        assert np.array_equal(host.view(), data)
        host.close()
        fd = disk.open()
        os.ftruncate(fd, nbytes)
        disk.allocate(fd, low=0, high=nbytes)
        for name, call in (("plain_write", os.pwritev), ("plain_read", os.preadv)):
            seconds = timed(lambda call=call, fd=fd: plain(call, fd, memory, nbytes))
            took.setdefault(name, []).append(seconds)
        os.close(fd)
    disk.close()
    speeds = {name: nbytes / 1e9 / min(found) for name, found in took.items()}
    return {
        "depth": DEPTH,
        **{f"{name}_gb_s": round(speed, 2) for name, speed in speeds.items()},
        **{
            f"{name}_median_gb_s": round(nbytes / 1e9 / statistics.median(found), 2)
            for name, found in took.items()
        },
        "write_ratio": round(speeds["write"] / speeds["plain_write"], 3),
        "read_ratio": round(speeds["read"] / speeds["plain_read"], 3),
    }


def plain(call: Callable[..., int], fd: int, memory: mmap.mmap, nbytes: int) -> None:
    """Read or write all of a file as fast as it goes."""
    view = memoryview(memory)
    with ThreadPoolExecutor(DEPTH) as threads:
        done = threads.map(
            lambda block: call(fd, [view[block[0] : sum(block)]], block[0]), blocks(0, nbytes)
        )
        assert sum(done) == nbytes
    view.release()


def switches(nbytes: int, *, in_memory: int, directory: Path, rounds: int) -> dict[str, float]:
    """Return the milliseconds of a switch with host memory for so many of three states."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = place / "sm.toml"
        config.write_text(
            f'node_id = "bench"\nruntime_dir = "{place}"\nhost_bytes = {in_memory * nbytes}\n'
            f'disk_bytes = {4 * nbytes}\ndisk_dir = "{directory}"\n'
            f'keys_file = "{keys_file(place)}"\n'
            f"[[devices]]\nindex = 0\nbytes_total = {nbytes}\n"
        )
        ready = read_line(
            spawn(stack, ["-m", "plexsvc.statemanager.main", "--config", str(config)])
        )
        channel = stack.enter_context(open_blocking_channel(ready["address"], KEYS))
        stub = statemanager_pb2_grpc.StateManagerStub(channel)

        def move(wpg_id: str, to: common_pb2.Residency) -> int:
            request = statemanager_pb2.MoveRequest(wpg_id=wpg_id, to=to)
            reply = stub.Move(request, timeout=DEADLINE_S)
            if reply.HasField("error"):
                raise RuntimeError(reply.error.message)
            return reply.total_us

        for wpg_id in TURNS:
            arguments = ["--client", wpg_id, "--bytes", str(nbytes)]
            read_line(spawn(stack, [*HERE, *arguments, "--socket", ready["data_socket"]]))
            move(wpg_id, common_pb2.RESIDENCY_HOST)
        took = []
        move("a", common_pb2.RESIDENCY_DEVICE)
        for turn in range(rounds * len(TURNS)):
            out, back = (TURNS[(turn + at) % len(TURNS)] for at in (0, 1))
            stand_still(stub, back if in_memory > 1 else "")
            spent_us = move(out, common_pb2.RESIDENCY_HOST)
            took.append((spent_us + move(back, common_pb2.RESIDENCY_DEVICE)) / 1000)
        return {"best_ms": round(min(took), 1), "median_ms": round(statistics.median(took), 1)}


def stand_still(stub: statemanager_pb2_grpc.StateManagerStub, back: str) -> None:
    """Return when nothing changes places any more, and `back` is in memory."""
    before, deadline_s = None, time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=DEADLINE_S)
        now = [(wpg.wpg_id, wpg.disk_bytes) for wpg in found.wpgs]
        if now == before and not dict(now).get(back):
            return
        before = now
        threading.Event().wait(0.5)
    raise TimeoutError(f"{back} is not in memory: {before}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    nbytes, where = options.mib * MIB, {"directory": options.directory, "rounds": options.rounds}
    service.report(
        benchmark="disk_tier",
        mib=options.mib,
        copies=copies(nbytes, **where),
        in_memory=switches(nbytes // 2, in_memory=3, **where),
        prefetched=switches(nbytes // 2, in_memory=2, **where),
        not_prefetched=switches(nbytes // 2, in_memory=1, **where),
    )


if __name__ == "__main__":
    main()

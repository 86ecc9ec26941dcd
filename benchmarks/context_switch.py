"""Cost of a context switch on a CPU arena: copies alone against plain memcpy, and the whole switch.

    python -m benchmarks.context_switch [--rounds 7] [--sizes 1 64 1024] [--ranks 64 256]

A real state manager and two real client processes alternate on a device that holds one of them. Per
size the best round counts (the machine is shared with others); some medians stand beside:

- `memcpy_ms`: a plain memcpy of the bytes one switch copies, out and in, in the same run;
- `copies_ms`: the state manager's copies of one switch; `copies_ratio` = memcpy / copies;
- `switch_ms`: everything inside the two moves: the parked rank unmapped, its pages handed to the
  other, which has them mapped and populated; `switch_ratio` = switch / copies;
- `wall_ms`: both moves as the caller sees them, gRPC included;
- `returned_*`: the same with `keep_pages = false`: pages go back to the machine at every switch;
  `returned_ms` are the steps of its best round, in order;
- `small_pages_*`: that with `huge_pages = false`, as in a sandbox that refuses tmpfs mounts;
- `plain_ms`: what the kernel asks for each step alone, without a state manager, on files of huge
  and of small pages: populate, map in a second place, unmap both, return;
- `ranks`: pages kept, WPGs of two ranks with as many bytes each, which are `equal`, `different`
  from the first byte on, or in the `last` byte only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks import service
from plexclient.wire.v1 import common_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.node.sidecar import LARGE_COPIES
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.statelink import mapping
from plexsvc.statelink.client import RegionSpec, StateClient
from plexsvc.statelink.mapping import Extent, FixedMapping
from plexsvc.statelink.member import Member
from plexsvc.statemanager import hugefiles
from tests.rigs.keys import KEYS, keys_file

MIB: Final = 1 << 20
CLOCK: Final = SystemClock()
HERE: Final = ("-m", "benchmarks.context_switch")
DEADLINE_S: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Microseconds of one switch: one WPG off the device, the other on."""

    copy_us: int
    total_us: int
    wall_us: int
    step_us: dict[str, int] = field(default_factory=dict)


class Rig:
    """A state manager with room for one of its two clients."""

    def __init__(self, stub: statemanager_pb2_grpc.StateManagerStub) -> None:
        self._stub = stub
        self._resident = "b"

    def switch(self) -> Round:
        """Park the resident WPG and load the other."""
        start_us = CLOCK.monotonic_us()
        out, back = self._resident, "a" if self._resident == "b" else "b"
        replies = [
            self.move(out, common_pb2.RESIDENCY_HOST),
            self.move(back, common_pb2.RESIDENCY_DEVICE),
        ]
        self._resident = back
        return Round(
            copy_us=sum(reply.copy_us for reply in replies),
            total_us=sum(reply.total_us for reply in replies),
            wall_us=CLOCK.monotonic_us() - start_us,
            step_us=steps(*replies),
        )

    def move(self, wpg_id: str, to: common_pb2.Residency) -> statemanager_pb2.MoveReply:
        """Move one WPG or end the benchmark."""
        request = statemanager_pb2.MoveRequest(wpg_id=wpg_id, to=to)
        reply = self._stub.Move(request, timeout=DEADLINE_S)
        if reply.HasField("error"):
            sys.exit(f"move of {wpg_id} failed: {reply.error.message}")
        return reply

    def inventory(self) -> statemanager_pb2.InventoryReply:
        """Return what is where."""
        return self._stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=DEADLINE_S)


def steps(off: statemanager_pb2.MoveReply, on: statemanager_pb2.MoveReply) -> dict[str, int]:
    """Return the steps of a switch in their order."""
    return {
        "export": off.step_us["export"],
        "copy_out": off.step_us["copy"],
        "unmap_in_rank": off.step_us["unmap"],
        "return_pages": off.step_us["return"],
        "populate": on.step_us["populate"],
        "copy_in": on.step_us["copy"],
        "map_in_rank": on.step_us["map"],
    }


@contextmanager
def rig(
    nbytes: int, *, keep_pages: bool, huge_pages: bool = True, ranks: Sequence[str] = ("equal",)
) -> Iterator[Rig]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = directory / "sm.toml"
        config.write_text(
            f'node_id = "bench"\nruntime_dir = "{directory}"\n'
            f"host_bytes = {2 * nbytes * len(ranks)}\n"
            f'keys_file = "{keys_file(directory)}"\n'
            f"keep_pages = {str(keep_pages).lower()}\nhuge_pages = {str(huge_pages).lower()}\n"
            + "".join(
                f"[[devices]]\nindex = {rank}\nbytes_total = {nbytes}\n"
                for rank in range(len(ranks))
            )
        )
        daemon = spawn(stack, ["-m", "plexsvc.statemanager.main", "--config", str(config)])
        ready = read_line(daemon)
        channel = stack.enter_context(open_blocking_channel(ready["address"], KEYS))
        found = Rig(statemanager_pb2_grpc.StateManagerStub(channel))
        for wpg_id in ("a", "b"):
            for rank, differs in enumerate(ranks):
                arguments = ["--client", wpg_id, "--bytes", str(nbytes), "--rank", str(rank)]
                arguments += ["--differs", differs, "--socket", ready["data_socket"]]
                read_line(spawn(stack, [*HERE, *arguments]))
            if wpg_id == "a":
                found.move("a", common_pb2.RESIDENCY_HOST)
        yield found


def spawn(stack: ExitStack, arguments: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **LARGE_COPIES},  # noqa: TID251 - as the node agent starts it
    )
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def client(wpg_id: str, nbytes: int, socket_path: str, *, rank: int, differs: str) -> None:
    """Hold `nbytes` of written device memory until stdin closes."""
    member = SimpleNamespace(
        wpg_id=wpg_id, rank=rank, incarnation=1, device_index=rank, job_id="bench", tenant="bench"
    )
    connection = StateClient(socket_path, cast("Member", member), handlers=None)
    region = connection.allocate([RegionSpec(name="params", nbytes=nbytes)])["params"]
    ctypes.memset(region.memory.address, 8 if differs == "different" else 7, nbytes)
    ctypes.memset(region.memory.address + nbytes - 1, 8 if differs == "last" else 7, 1)
    print(json.dumps({"ready": wpg_id}), flush=True)
    sys.stdin.read()


class Buffers:
    """Two written buffers to measure plain memcpy with."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._source, self._target = bytearray(nbytes), bytearray(nbytes)
        for buffer in (self._source, self._target):
            ctypes.memset(self._address(buffer), 7, nbytes)

    def copy_us(self) -> int:
        """Return the time to copy the bytes once each way, as a switch does."""
        source, target = self._address(self._source), self._address(self._target)
        start_us = CLOCK.monotonic_us()
        mapping.copy(target, source, self._nbytes)
        mapping.copy(source, target, self._nbytes)
        return CLOCK.monotonic_us() - start_us

    def _address(self, buffer: bytearray) -> int:
        return ctypes.addressof(ctypes.c_uint8.from_buffer(buffer))


def measure(nbytes: int, rounds: int) -> dict[str, object]:
    buffers = Buffers(nbytes)
    with rig(nbytes, keep_pages=True) as found:
        found.switch()  # faults host memory in
        found.switch()
        pairs = [(buffers.copy_us(), found.switch()) for _ in range(rounds)]
    returned = returned_rounds(nbytes, rounds, huge_pages=True)
    small = returned_rounds(nbytes, rounds, huge_pages=False)
    memcpy = [us for us, _ in pairs]
    copies = [r.copy_us for _, r in pairs]
    totals = [r.total_us for _, r in pairs]
    best = min((r for _, r in pairs), key=lambda r: r.total_us)
    return {
        "mib": nbytes // MIB,
        "memcpy_ms": min(memcpy) / 1e3,
        "copies_ms": min(copies) / 1e3,
        "copies_ratio": round(min(memcpy) / min(copies), 3),
        "copies_ratio_median": round(statistics.median(memcpy) / statistics.median(copies), 3),
        "switch_ms": best.total_us / 1e3,
        "switch_ratio": round(best.total_us / best.copy_us, 2),
        "switch_ms_median": statistics.median(totals) / 1e3,
        "beyond_copies_ms": (best.total_us - best.copy_us) / 1e3,
        "wall_ms": min(r.wall_us for _, r in pairs) / 1e3,
        **summary("returned", returned),
        **summary("small_pages", small),
        "plain_ms": plain_costs(nbytes),
    }


def returned_rounds(nbytes: int, rounds: int, *, huge_pages: bool) -> list[Round]:
    """Return switches in which all pages go back to the machine."""
    with rig(nbytes, keep_pages=False, huge_pages=huge_pages) as found:
        found.switch()
        found.switch()
        return [found.switch() for _ in range(max(2, rounds // 2))]


def ranks(nbytes: int, rounds: int) -> dict[str, object]:
    """Measure WPGs of two ranks whose state is equal and not, a switch of each in turn."""
    with ExitStack() as stack:
        rigs = {
            how: stack.enter_context(rig(nbytes, keep_pages=True, ranks=("equal", how)))
            for how in ("equal", "different", "last")
        }
        for _ in range(2):
            for one in rigs.values():
                one.switch()
        switched: dict[str, list[Round]] = {how: [] for how in rigs}
        for _ in range(rounds):
            for how, one in rigs.items():
                switched[how].append(one.switch())
        spared = rigs["equal"].inventory().replica_bytes
    return {
        "mib": nbytes // MIB,
        "stored_once_mib": spared // MIB,
        **{
            f"{how}_{name}": {
                "best_ms": min(us) / 1e3,
                "median_ms": statistics.median(us) / 1e3,
            }
            for how, found in switched.items()
            for name, us in (
                ("switch", [one.total_us for one in found]),
                ("copy_out", [one.step_us["copy_out"] for one in found]),
                ("copy_in", [one.step_us["copy_in"] for one in found]),
            )
        },
    }


def summary(name: str, rounds: list[Round]) -> dict[str, object]:
    best = min(rounds, key=lambda r: r.total_us)
    copies_us = min(r.copy_us for r in rounds)
    return {
        f"{name}_switch_ms": best.total_us / 1e3,
        f"{name}_switch_ratio": round(best.total_us / copies_us, 2),
        f"{name}_ms": {step: us / 1e3 for step, us in best.step_us.items()},
    }


def plain_costs(nbytes: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of each memory call, the best of three, by the size of the pages."""
    fds = {"small": os.memfd_create("bench")}
    os.ftruncate(fds["small"], nbytes)
    try:
        fds["huge"] = hugefiles.open_huge_file(nbytes)
    except OSError as error:
        print(f"no huge pages here: {error}", file=sys.stderr)
    costs = {}
    for pages, fd in fds.items():
        tries = [plain_round(fd, nbytes) for _ in range(3)]
        costs[pages] = {step: min(t[step] for t in tries) / 1e3 for step in tries[0]}
        os.close(fd)
    return costs


def plain_round(fd: int, nbytes: int) -> dict[str, int]:
    whole = Extent(offset=0, nbytes=nbytes)
    first, second = FixedMapping(nbytes), FixedMapping(nbytes)
    first.attach(fd, [whole], is_populated=False)
    found = {
        "populate": timed_us(lambda: mapping.populate(first.address, nbytes)),
        "map": timed_us(lambda: second.attach(fd, [whole])),
        "unmap_second": timed_us(second.park),
        "unmap_first": timed_us(lambda: mapping.unmap_pages(first.address, nbytes)),
        "return": timed_us(lambda: mapping.punch(fd, whole)),
    }
    first.close()
    second.close()
    return found


def timed_us(step: Callable[[], None]) -> int:
    start_us = CLOCK.monotonic_us()
    step()
    return CLOCK.monotonic_us() - start_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024], help="MiB")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256], help="MiB of each rank")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--differs", default="", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(
            arguments.client,
            arguments.bytes,
            arguments.socket,
            rank=arguments.rank,
            differs=arguments.differs,
        )
        return
    sizes = [measure(size * MIB, arguments.rounds) for size in arguments.sizes]
    pairs = [ranks(size * MIB, 3 * arguments.rounds) for size in arguments.ranks]
    service.report(benchmark="context_switch", sizes=sizes, ranks=pairs)


if __name__ == "__main__":
    main()

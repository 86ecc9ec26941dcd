"""Speed of new weights to other hosts over a slow line: whole, as deltas, and to several at once.

    python -m benchmarks.slow_links [--mib 256] [--gbit 1] [--rounds 3] [--hosts 4]

Hosts are network namespaces; the first one's line is shaped by `tc`, and has a state manager with a
trainer's parameters. `line` is a bare `sendfile` over the same line in the clear, then `whole` a
first version, each as bytes a second; `delta` is the next version, where so many elements changed,
and how many times faster it was there than `whole`, both from the request to verified bytes in
memory. `codes` are the bytes of a block's delta, by gaps and by a bitmap, and the best speeds of
one thread to make and to apply it; `processor_s` is what sender and receiver had of a processor,
`line_processor_s` what the bare ones had. `several` sends a version to all other hosts at once, and
`site` does where these are neighbours at a site; `copies` are how often it crossed the line. What
arrives is compared with what was published. JSON lines, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.service import report
from benchmarks.state_rig import member
from plexclient.wire.v1 import statemanager_pb2 as pb
from plexclient.wire.v1.statemanager_pb2_grpc import StateManagerStub
from plexsvc.ids import VersionId
from plexsvc.node.sidecar import LARGE_COPIES
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.statelink.client import RegionSpec, StateClient
from plexsvc.weights import deltas
from plexsvc.weights.checksums import BLOCK_BYTES
from tests.rigs.keys import KEYS, keys_file
from tests.rigs.network_hosts import NetworkHost, network_hosts, run

TENSORS: Final = 8
SHARES: Final = (0.05, 0.01)
PORT: Final = 50070
SETTLED_S: Final = 1.5
"""Pause after a version is published, before another host gets it."""

SEND: Final = """
import os, socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
line, _ = server.accept()
fd, left = os.memfd_create("sent"), int(sys.argv[3])
os.posix_fallocate(fd, 0, left)
had, at = sum(os.times()[:2]), 0
while at < left:
    at += os.sendfile(line.fileno(), fd, at, left - at)
line.shutdown(socket.SHUT_WR)
line.recv(1)
print(sum(os.times()[:2]) - had)
"""
RECEIVE: Final = """
import os, socket, sys, time
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
into, got, since, had = bytearray(1 << 20), 0, time.monotonic(), sum(os.times()[:2])
while count := line.recv_into(into):
    got += count
print(got / (time.monotonic() - since), sum(os.times()[:2]) - had)
"""


@dataclass(slots=True)
class Node:
    """A state manager on a host, and a client of it in this process."""

    name: str
    address: str
    stub: StateManagerStub
    client: StateClient
    pid: int

    @property
    def processor_s(self) -> float:
        """Processor time that its state manager has had."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fetch(self, version: int, source: Node, *, of: str = "d") -> tuple[float, memoryview]:
        """Return the seconds until a version is here, and its bytes."""
        holder = pb.VersionHolder(node_id=source.name, state_manager=source.address)
        wanted, since_s = pb.PublishedVersion(deployment_id=of, version=version), time.monotonic()
        data = self.client.fetch_version(wanted, holder).data
        return time.monotonic() - since_s, data

    @property
    def arrived(self) -> int:
        """Bytes that came over the line."""
        return int(self.stub.Inventory(pb.InventoryRequest(), timeout=60).arrived_bytes)


@contextmanager
def nodes(hosts: tuple[NetworkHost, ...], *, nbytes: int, site: str = "") -> Iterator[list[Node]]:
    """Start a state manager on each host; all but the first are at a site."""
    with ExitStack() as stack:
        found = []
        for number, host in enumerate(hosts):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pxl")))
            config = place / "sm.toml"
            config.write_text(
                f'node_id = "n{number}"\nruntime_dir = "{place}"\nhost_bytes = {6 * nbytes}\n'
                f'keys_file = "{keys_file(place)}"\nlisten = "{host.address}:{PORT}"\n'
                f'site = "{site if number else ""}"\n'
                f"[[devices]]\nindex = 0\nbytes_total = {nbytes + (2 << 20)}\n"
            )
            argv = host.python("-m", "plexsvc.statemanager.main", "--config", str(config))
            environment = {**os.environ, **LARGE_COPIES}  # noqa: TID251 - as an agent's child has
            daemon = stack.enter_context(
                subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
            )
            stack.callback(daemon.kill)
            assert daemon.stdout is not None
            ready = json.loads(daemon.stdout.readline())
            channel = stack.enter_context(open_blocking_channel(ready["address"], KEYS))
            client = StateClient(ready["data_socket"], member(wpg_id="w"), handlers=None)
            stack.callback(client.close)
            stub = StateManagerStub(channel)
            found.append(Node(f"n{number}", ready["address"], stub, client, daemon.pid))
        yield found


class Trainer:
    """Parameters in blocks of random bits, of which a share changes from version to version."""

    def __init__(self, node: Node, *, nbytes: int, dtype: str) -> None:
        self.node, self.nbytes = node, nbytes
        self._width = 2 if dtype == "BF16" else 4
        region = node.client.allocate([RegionSpec(name=dtype, nbytes=nbytes)])[dtype]
        self._bits = region.tensor().numpy().view(f"u{self._width}")
        self._rng = np.random.default_rng(0)
        some = self._rng.integers(0, 1 << 16, BLOCK_BYTES // self._width)
        self._bits.reshape(-1, some.size)[:] = some
        numel = self._bits.size // TENSORS
        node.client.set_index([_piece(dtype, at, numel, self._width) for at in range(TENSORS)])

    def publish(self, share: float, *, number: int, of: str = "d") -> memoryview:
        """Change a share of the elements, publish, and return the bytes."""
        flips = self._rng.random(BLOCK_BYTES // self._width, dtype=np.float32) < share
        self._bits.reshape(-1, flips.size)[:] ^= flips
        request = pb.PublishRequest(wpg_id="w", deployment_id=of, version=number)
        reply = self.node.stub.Publish(request, timeout=120)
        assert not reply.HasField("error"), reply.error
        if number > 2:
            gone = pb.ReleaseVersionRequest(deployment_id=of, version=number - 2)
            self.node.stub.ReleaseVersion(gone, timeout=60)
        data = self.node.client.open_version(VersionId(of, 0, number)).data
        time.sleep(SETTLED_S)  # noqa: TID251 - a state manager takes memory for the next one
        return data


def _piece(dtype: str, at: int, numel: int, width: int) -> pb.CanonicalPiece:
    return pb.CanonicalPiece(
        name=f"t{at}",
        offset=at * numel * width,
        kind="param",
        dtype=dtype,
        region=dtype,
        global_shape=[numel],
        start=[0],
        size=[numel],
        stride=[1],
    )


@dataclass(frozen=True, slots=True)
class Line:
    """What a bare `sendfile` between two hosts reached."""

    bytes_per_s: float
    processor_s: tuple[float, float]
    """Of sender and receiver."""


def line_of(sender: NetworkHost, receiver: NetworkHost, *, nbytes: int) -> Line:
    """Measure a bare `sendfile` between two hosts."""
    where = (sender.address, str(PORT + 1))
    with subprocess.Popen(
        sender.python("-c", SEND, *where, str(nbytes)), stdout=subprocess.PIPE, text=True
    ) as sending:
        assert sending.stdout is not None
        sending.stdout.readline()
        speed, received_s = run(*receiver.python("-c", RECEIVE, *where)).split()
        return Line(float(speed), (float(sending.stdout.readline()), float(received_s)))


def codes(old: memoryview, new: memoryview, *, width: int) -> dict[str, float]:
    """Return the bytes of a block's delta by each way to say what changed, and the best speeds."""
    base, block = old[:BLOCK_BYTES], new[:BLOCK_BYTES]
    into, encode_s, decode_s = memoryview(bytearray(BLOCK_BYTES)), [], []
    for _ in range(20):
        since_s = time.perf_counter()
        delta = deltas.encode(base, block, width=width, most=BLOCK_BYTES)
        encode_s.append(time.perf_counter() - since_s)
        assert delta is not None, "as large as may be"
        since_s = time.perf_counter()
        deltas.decode(into, base=base, delta=delta, width=width)
        decode_s.append(time.perf_counter() - since_s)
    one, other = (np.frombuffer(part, dtype=f"u{width}") for part in (base, block))
    bitmap = BLOCK_BYTES // width // 8 + int(np.count_nonzero(one != other)) * width
    return {
        "gaps": len(delta),
        "bitmap": bitmap,
        "encode_gb_per_s": round(BLOCK_BYTES / min(encode_s) / 1e9, 2),
        "decode_gb_per_s": round(BLOCK_BYTES / min(decode_s) / 1e9, 2),
    }


def measure(
    found: list[Node], hosts: tuple[NetworkHost, ...], options: argparse.Namespace, dtype: str
) -> None:
    """Measure whole versions and deltas from the first node to the second."""
    nbytes, reader = options.mib << 20, found[1]
    trainer = Trainer(found[0], nbytes=nbytes, dtype=dtype)
    took_s = whole(trainer, found, hosts, rounds=options.rounds)
    number = 1
    data = trainer.publish(0, number=number)
    _, got = reader.fetch(number, found[0])
    assert got == data, "bit by bit"
    for share in SHARES:
        times_s, sizes, busy_s, before = [], [], [], data
        for _ in range(options.rounds):
            number += 1
            before, data, had = data, trainer.publish(share, number=number), reader.arrived
            had_s = [node.processor_s for node in found]
            delta_s, got = reader.fetch(number, found[0])
            busy_s.append(since(had_s, found))
            assert got == data, "bit by bit"
            times_s.append(delta_s)
            sizes.append(reader.arrived - had)
        delta_s = statistics.median(times_s)
        report(
            what="delta",
            dtype=dtype,
            changed=share,
            whole_s=round(took_s, 3),
            delta_s=round(delta_s, 3),
            faster=round(took_s / delta_s, 1),
            of_bytes=round(statistics.median(sizes) / nbytes, 4),
            codes=codes(before, data, width=2 if dtype == "BF16" else 4),
            all_s=[round(one, 3) for one in times_s],
            processor_s=medians(busy_s),
            load=os.getloadavg()[0],
        )


def whole(
    trainer: Trainer, found: list[Node], hosts: tuple[NetworkHost, ...], *, rounds: int
) -> float:
    """Measure whole versions, each beside the bare line; return the median of their seconds."""
    nbytes, times_s, busy_s, lines = trainer.nbytes, list[float](), [], []
    for number in range(rounds):
        of = f"whole-{number}"
        data = trainer.publish(0, number=1, of=of)
        had_s = [node.processor_s for node in found]
        took_s, got = found[1].fetch(1, found[0], of=of)
        busy_s.append(since(had_s, found))
        assert got == data, "bit by bit"
        times_s.append(took_s)
        gone = pb.ReleaseVersionRequest(deployment_id=of, version=1)
        found[0].stub.ReleaseVersion(gone, timeout=60)
        lines.append(line_of(hosts[0], hosts[1], nbytes=nbytes))
    line = statistics.median(one.bytes_per_s for one in lines)
    speed = nbytes / statistics.median(times_s)
    report(
        what="whole",
        line=int(line),
        whole=int(speed),
        of_line=round(speed / line, 3),
        all_s=[round(one, 3) for one in times_s],
        line_processor_s=medians([one.processor_s for one in lines]),
        processor_s=medians(busy_s),
        load=os.getloadavg()[0],
    )
    return statistics.median(times_s)


def since(had_s: list[float], found: list[Node]) -> list[float]:
    """Return what each node has had of a processor since it had so much."""
    return [node.processor_s - then_s for node, then_s in zip(found, had_s, strict=True)]


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each column."""
    return [round(statistics.median(one), 3) for one in zip(*rows, strict=True)]


def several(found: list[Node], hosts: tuple[NetworkHost, ...], *, mib: int, what: str) -> None:
    """Measure a version to all other hosts at once."""
    nbytes = mib << 20
    line = line_of(hosts[0], hosts[1], nbytes=nbytes).bytes_per_s
    data = Trainer(found[0], nbytes=nbytes, dtype="F32").publish(0, number=1)
    readers, had = found[1:], sent_bytes(hosts[0])
    with ThreadPoolExecutor(len(readers)) as pool:
        since_s = time.monotonic()
        arrived = list(pool.map(lambda reader: reader.fetch(1, found[0]), readers))
        took_s = time.monotonic() - since_s
    assert all(got == data for _, got in arrived), "bit by bit"
    each_s = [one for one, _ in arrived]
    copies = (sent_bytes(hosts[0]) - had) / nbytes
    report(
        what=what,
        receivers=len(readers),
        line=int(line),
        copies=round(copies, 3),
        all_s=round(took_s, 3),
        of_line=round(nbytes * round(copies) / took_s / line, 3),
        slowest_over_mean=round(max(each_s) / statistics.fmean(each_s), 3),
        load=os.getloadavg()[0],
    )


def sent_bytes(host: NetworkHost) -> int:
    """Return what a host has sent, headers included."""
    return int(run(*host.command("cat", "/sys/class/net/eth0/statistics/tx_bytes")))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--gbit", type=float, default=1, help="0: not shaped")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="*", default=["BF16", "F32"])
    parser.add_argument("--hosts", type=int, default=4, help="receivers at once; 0: none")
    options: Any = parser.parse_args()
    print(json.dumps({"gbit": options.gbit, "python": sys.version.split()[0]}))
    with network_hosts(1 + max(1, options.hosts)) as hosts:
        if options.gbit:
            shape = (
                "root",
                "tbf",
                "rate",
                f"{options.gbit}gbit",
                "burst",
                "1mb",
                "latency",
                "50ms",
            )
            run("tc", "-n", hosts[0].namespace, "qdisc", "add", "dev", "eth0", *shape)
        for dtype in options.dtypes:
            with nodes(hosts[:2], nbytes=options.mib << 20) as found:
                measure(found, hosts, options, dtype)
        if options.hosts:
            for what, site in (("several", ""), ("site", "far")):
                with nodes(hosts, nbytes=options.mib << 20, site=site) as found:
                    several(found, hosts, mib=options.mib, what=what)


if __name__ == "__main__":
    main()

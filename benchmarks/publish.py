"""Time to publish weights and to read them on the same host, beside one memcpy of as many bytes.

    python -m benchmarks.publish [--mib 1024] [--rounds 9] [--pause 2]

The process of a state manager publishes 290 tensors of a client's region, again and again, and
keeps the newest two versions. `still_s` is how long training stands still for it, `publish_s` how
long a caller waits, checksums included, and `pull_s` how long a reader takes to open, verify and
copy the version to where it computes. `both_s` is what a job waits for a `sync`. A memcpy in the
same rounds is the measure: into memory that was used before (`warm_s`) and into new memory
(`cold_s`). `still_over_warm` and `both_over_warm` are medians of the ratios in each round. The
first round counts apart (`first_still_s`): nothing could be prepared for it.

`worked_s` is the processor time of the state manager for a version, from one publish to the next,
and `warm_worked_s` that of the memcpy: both depend less on neighbours than time does.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from benchmarks import load
from benchmarks.service import report
from benchmarks.state_rig import DEADLINE_S, Client, one_client, tensor_pieces
from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.ids import DeploymentId, VersionId
from plexsvc.weights.checksums import verify
from plexsvc.weights.pieces import Bytes

KEPT: Final = 2
"""Versions."""
FENCE: Final = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
DEPLOYMENT: Final = DeploymentId("d")


def rounds_of(client: Client, *, nbytes: int, pause_s: float) -> Iterator[dict[str, float]]:
    """Publish, read and copy once a round; yield how long each took."""
    source, target = _ones(nbytes), _ones(nbytes)
    state_manager = load.family(os.getpid())
    worked_ms = load.worked_ms(state_manager)
    for number in itertools.count(1):
        time.sleep(pause_s)  # noqa: TID251 - a step of training, which takes real time
        worked_s = time.thread_time()
        took = {"warm_s": _seconds(partial(np.copyto, target, source))}
        took["warm_worked_s"] = time.thread_time() - worked_s
        took["cold_s"] = _seconds(partial(_copy_to_new, source))
        started_s = time.perf_counter()
        took["still_s"] = _publish(client, number)
        took["publish_s"] = time.perf_counter() - started_s
        took["pull_s"] = _seconds(partial(_pull, client, number, target))
        took["both_s"] = took["publish_s"] + took["pull_s"]
        if number > KEPT:
            client.stub.ReleaseVersion(
                statemanager_pb2.ReleaseVersionRequest(
                    deployment_id=DEPLOYMENT, incarnation=1, version=number - KEPT, fence=FENCE
                ),
                timeout=DEADLINE_S,
            )
        before_ms, worked_ms = worked_ms, load.worked_ms(state_manager)
        took["worked_s"] = (worked_ms - before_ms) / 1e3
        yield took


def _ones(nbytes: int) -> Bytes:
    """Return memory that was used; it begins at a page, as versions do: copies are fast then."""
    memory = np.ones(nbytes + mmap.PAGESIZE, dtype=np.uint8)
    return memory[-memory.ctypes.data % mmap.PAGESIZE :][:nbytes]


def _publish(client: Client, number: int) -> float:
    """Publish a version; return how long training stood still."""
    request = statemanager_pb2.PublishRequest(
        fence=FENCE,
        wpg_id=client.wpg_id,
        deployment_id=DEPLOYMENT,
        incarnation=1,
        version=number,
    )
    reply = client.stub.Publish(request, timeout=DEADLINE_S)
    if reply.HasField("error"):
        raise RuntimeError(reply.error.message)
    return float(reply.copy_us) / 1e6


def _pull(client: Client, number: int, target: Bytes) -> None:
    part = client.connection.open_version(VersionId(DEPLOYMENT, 1, number))
    verify(part.manifest, part.data)
    data = np.frombuffer(part.data, dtype=np.uint8)[: part.manifest.nbytes]
    np.copyto(target[: len(data)], data)


def _copy_to_new(source: Bytes) -> None:
    with mmap.mmap(-1, source.nbytes) as new:
        np.copyto(np.frombuffer(new, dtype=np.uint8), source)


def _seconds(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pause", type=float, default=2.0)
    args = parser.parse_args()
    nbytes = args.mib << 20
    # Host memory is twice the budget: for the region and for three versions.
    with one_client("cpu", nbytes=nbytes, budget=3 * nbytes) as client:
        assert client.region is not None, "it was asked for"
        client.region.tensor().random_(0, 256)  # zeros may be copied faster than weights
        client.connection.set_index(tensor_pieces(nbytes))
        each = rounds_of(client, nbytes=nbytes, pause_s=args.pause)
        first, *found = [next(each) for _ in range(1 + args.rounds)]
    report(
        mib=args.mib,
        first_still_s=round(first["still_s"], 3),
        **{name: round(statistics.median(one[name] for one in found), 3) for name in first},
        **{
            f"{name}_over_warm": round(
                statistics.median(one[f"{name}_s"] / one["warm_s"] for one in found), 2
            )
            for name in ("still", "both")
        },
    )


if __name__ == "__main__":
    main()

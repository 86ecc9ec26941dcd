"""Different devices work at the same time; one device never runs two."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]


def overlap_us(first: list[service_pb2.Span], second: list[service_pb2.Span]) -> int:
    return sum(
        max(0, min(a.end_us, b.end_us) - max(a.start_us, b.start_us)) for a in first for b in second
    )


def test_two_devices_overlap_and_one_never_does(cluster: LiveCluster, tiny_model: Path) -> None:
    batch = fixed_batch(9, sequences=64, longest=60)
    calls: list[Future[Any]] = []
    with cluster.connect() as connection, connection.job("groups") as job:
        actors = [
            job.deploy(
                f"actor-{index}",
                role="actor",
                model=str(tiny_model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-3),
            )
            for index in range(4)
        ]
        for _ in range(4):
            calls += [actor.forward_backward.submit(batch, loss="ppo") for actor in actors]
        for done in calls:
            done.result(120)
        ids = {actor.deployment_id for actor in actors}
        spans = [span for span in cluster.timeline() if span.deployment_id in ids]
    by_device: dict[tuple[str, int], list[service_pb2.Span]] = defaultdict(list)
    for span in spans:
        by_device[span.node_id, span.device].append(span)
    assert len(by_device) == 3, "four deployments on three devices: one device is shared"
    shares = [{span.deployment_id for span in held} for held in by_device.values()]
    assert max(len(share) for share in shares) == 2
    for held in by_device.values():
        held.sort(key=lambda span: span.start_us)
        assert all(a.end_us <= b.start_us for a, b in pairwise(held)), "a device ran two at once"
    devices = list(by_device.values())
    assert overlap_us(devices[0], devices[1]) > 0
    assert overlap_us(devices[1], devices[2]) > 0

"""With memory for one job, two are never resident together: by the books and by the pages."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster, rank_processes, shared_resident_bytes
from tests.rigs.workloads import Program, fill_other_devices, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_two_jobs_are_never_resident_together(cluster: LiveCluster, tiny_model: Path) -> None:
    # Names that no other test has: of these jobs nothing is on record.
    with (
        cluster.connect() as connection,
        connection.job("budget-a") as a,
        connection.job("budget-b") as b,
    ):
        first = a.deploy("actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW())
        fill_other_devices(a, 2, model=tiny_model)
        second = b.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW()
        )
        ranks = rank_processes(cluster, [first.deployment_id, second.deployment_id])
        state_bytes = min(first.info.state_bytes, second.info.state_bytes)
        seen: list[tuple[int, ...]] = []
        booked: list[int] = []
        stop = threading.Event()

        def watch() -> None:
            # One look reads the processes one after another, and twice: a switch between two
            # reads of a slow watcher shows both resident once, but not in both rounds.
            while not stop.wait(0.002):
                seen.append(tuple(shared_resident_bytes(pid) for pid in [*ranks, *ranks]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            run_interleaved([Program(first, 0), Program(second, 1)])
            for device in cluster.status().devices:
                booked.append(device.bytes_used)
                assert device.bytes_used <= device.bytes_total
        finally:
            stop.set()
            watcher.join()
    assert max(max(look) for look in seen) >= state_bytes, "the watcher saw no resident state"
    both = [look for look in seen if min(look) >= state_bytes // 4]
    assert not both, f"both jobs' pages were resident: {both[:3]}"
    assert any(used > 0 for used in booked)

"""Durable jobs on four hosts, one over two of them, outlive each fault of a host: the same bits.

A host is killed, isolated and drained, one is added, and the service is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from tests.rigs.durable_jobs import start, stepping
from tests.rigs.network_hosts import HostCluster, network_hosts
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = ("one", "two", "three", "four")
STEPS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    """Three nodes of a device, and a fourth host."""
    place = tmp_path_factory.mktemp("hosts")
    with (
        network_hosts(4) as hosts,
        HostCluster(place, hosts, NAMES) as found,
    ):
        for name in NAMES[1:3]:
            found.join(name)
        yield found


@pytest.fixture(scope="module")
def undisturbed(cluster: HostCluster, tiny_model: Path) -> list[Any]:
    """What the steps come to where nothing happens."""
    found = []
    with plex.connect(cluster.card.address, token=cluster.card.token) as connection:
        for seed, pp in ((1, 2), (2, 1)):
            with connection.job("calm") as job:
                training = start(job, tiny_model, seed=seed, durability="none", pp=pp)
                for _ in range(STEPS):
                    with stepping(training):
                        pass
                found.append(training.outcome())
    return found


def test_two_jobs_outlive_every_fault_of_a_host(
    cluster: HostCluster, tiny_model: Path, undisturbed: list[Any]
) -> None:
    with (
        plex.connect(cluster.card.address, token=cluster.card.token) as connection,
        connection.job("wide") as job,
        connection.job("narrow") as other,
    ):
        wide = start(job, tiny_model, seed=1, durability="step", pp=2)
        narrow = start(other, tiny_model, seed=2, durability="step", pp=1)

        def home() -> str:
            for one in (job, other):
                cluster.wait_for_copies(one)
            return next(name for name in cluster.homes(job) if name != NAMES[0])

        def becomes(name: str, state: str) -> None:
            wait_until(lambda: cluster.nodes()[name] == state, what=f"{name} is {state}")

        with stepping(wide, narrow):
            pass
        with stepping(wide, narrow):
            cluster.join("four")
        becomes("four", "up")

        killed = home()
        with stepping(wide, narrow):
            os.kill(cluster.agent(killed), signal.SIGKILL)
            wait_until(lambda: not cluster.host(killed).pids(), what="no process of it is alive")
        assert killed not in cluster.homes(job)
        cluster.join(killed)
        becomes(killed, "up")

        silent = home()
        with stepping(wide, narrow):
            cluster.host(silent).cut()
            becomes(silent, "lost")
            assert cluster.ranks(silent) == []  # before its work goes on elsewhere
        assert silent not in cluster.homes(job)
        cluster.host(silent).mend()
        becomes(silent, "up")

        drained = home()
        with stepping(wide, narrow):
            cluster.plexctl("node", "drain", drained)
        becomes(drained, "drained")
        assert drained not in cluster.homes(job)

        cluster.kill()
        cluster.start()
        with stepping(wide, narrow):
            pass
        found = [one.outcome() for one in (wide, narrow)]
    assert found == undisturbed

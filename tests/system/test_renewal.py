"""A node of another host goes on when the certificate ends with which it joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import read_keys
from tests.rigs import light_nodes
from tests.rigs.live_cluster import SHARES_ALL
from tests.rigs.network_hosts import HostCluster, network_hosts
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

BRIEF = f"{SHARES_ALL}node_certificate_us = 40_000_000\n"


def test_a_node_outlives_its_certificate_and_its_agent_starts_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in light_nodes.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with (
        network_hosts(2) as hosts,
        HostCluster(tmp_path, hosts, ["left", "right"], scheduler=BRIEF) as cluster,
    ):
        cluster.join("right")
        keys = tmp_path / "j" / "right" / "keys.json"

        def certificate() -> certificates.Facts:
            return certificates.read(read_keys(keys).certificate)

        def ends(one: certificates.Facts) -> None:
            wait_until(lambda: SystemClock().wall_us() > one.expires_us, what="it ends")

        first = certificate()
        ends(first)
        second = certificate()
        assert second.serial != first.serial
        assert cluster.nodes() == {"left": "up", "right": "up"}
        said = cluster.plexctl("doctor", "--cluster")["findings"]  # over connections of its own
        assert {one["name"] for one in said if one["grade"] != "failed"} == {"left", "right"}, said
        cluster.joined["right"].terminate()
        cluster.joined["right"].wait(120)
        cluster.join("right")
        assert certificate().issued_us >= second.issued_us
        wait_until(lambda: cluster.nodes()["right"] == "up", what="it is back")

"""A node agent beside a live cluster, as an operator adds one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plexsvc.cluster.places import keys_file
from tests.rigs.live_cluster import MIB, TETHERED, LiveCluster

AGENT = """
node_id = "{node_id}"
runtime_dir = "{runtime_dir}"
keys_file = "{keys_file}"
host_bytes = {host_bytes}
staging_bytes = {staging_bytes}
devices = [{device}]
"""


@contextmanager
def another_node(live: LiveCluster, folder: Path, *, node_id: str, device: str) -> Iterator[str]:
    """Run an agent with one device that is a member of the cluster; yield its address."""
    config = folder / "agent.toml"
    config.write_text(
        AGENT.format(
            node_id=node_id,
            runtime_dir=folder / "run",
            keys_file=keys_file(live.state_dir),
            host_bytes=2048 * MIB,
            staging_bytes=256 * MIB,
            device=device,
        )
    )
    command = [*TETHERED, "-m", "plexsvc.node.agent", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            yield str(json.loads(agent.stdout.readline())["address"])
        finally:
            agent.terminate()

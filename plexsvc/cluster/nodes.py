"""The nodes of a cluster that nobody configured: this machine, by its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from plexsvc.cluster.config import DEFAULT_NODES, NodeConfig
from plexsvc.node.discovery import half_of_memory, on_gpus
from plexsvc.statelink.cuda import Gpu


def plan(gpus: Sequence[Gpu]) -> tuple[NodeConfig, ...]:
    """Return one node with devices on all `gpus`, or the small one of a machine without any."""
    if not gpus:
        return DEFAULT_NODES
    return (NodeConfig(node_id="local", devices=on_gpus(gpus), host_bytes=half_of_memory()),)

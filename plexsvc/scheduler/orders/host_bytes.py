"""Facts about host memory that only the driver knows, each told to the core once it is news.

The core reserves room for the versions that are kept. Older ones stay while they are used, and a
process that reads a version from another host has it in its own memory until it has loaded it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from plexsvc.ids import DeploymentId, NodeId
from plexsvc.rpc.addresses import host_of
from plexsvc.scheduler.core.events import VersionRead, VersionsHeld
from plexsvc.scheduler.core.vocabulary import NodeBytes
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders.reach import Reach


def tell_held(reach: Reach, deployment_id: DeploymentId) -> None:
    """Tell what state managers hold of a deployment's versions, and of its last step's state."""
    record, found = reach.registry.deployments.get(deployment_id), Counter[NodeId]()
    if record is not None and record.durable is not None:
        found = record.durable.held()
    held = _sorted(reach.versions.held(deployment_id) + found)
    if _is_news(reach, f"versions {deployment_id}", held):
        reach.post(VersionsHeld(deployment_id=deployment_id, held=held))


def tell_read(reach: Reach, record: WpgRecord, published: Published) -> None:
    """Tell what the processes of a WPG are about to read of a version that lies on other hosts."""
    read = _sorted(_far_bytes(reach, record, published))
    if _is_news(reach, f"reads {record.wpg_id}", read):
        reach.post(VersionRead(wpg_id=record.wpg_id, read=read))


def forget_reads(reach: Reach, record: WpgRecord) -> None:
    """Drop what was told of a WPG that is gone, or that has what it started from."""
    reach.told_bytes.pop(f"reads {record.wpg_id}", None)


def _far_bytes(reach: Reach, record: WpgRecord, published: Published) -> Counter[NodeId]:
    """Return the bytes by node; on one host, versions of other nodes are mapped."""
    found = Counter[NodeId]()
    hosts = {
        node_id: host_of(reach.nodes.link(node_id).description.state_manager)
        for node_id in {*record.nodes, *published.nodes}
        if reach.nodes.is_up(node_id)
    }
    for place in record.places:
        here = hosts.get(place.node_id)
        for node_id, nbytes in zip(published.nodes, published.nbytes, strict=False):
            if node_id in hosts and hosts[node_id] != here:
                found[place.node_id] += nbytes
    return found


def _is_news(reach: Reach, name: str, told: tuple[NodeBytes, ...]) -> bool:
    if reach.told_bytes.get(name, ()) == told:
        return False
    if told:
        reach.told_bytes[name] = told
    else:
        del reach.told_bytes[name]
    return True


def _sorted(found: Mapping[NodeId, int]) -> tuple[NodeBytes, ...]:
    return tuple(NodeBytes(node_id=name, nbytes=n) for name, n in sorted(found.items()) if n)

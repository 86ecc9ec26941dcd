"""Taking over from another WPG: its complete copies, one a node, and where they leave off.

A complete copy holds what managed state holds between two operations: parameters, masters and
moments by canonical key, the scalars of each rank, and the last applied number. Reading it box by
box gives a rank on other devices the very bits of the rank it replaces.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.worker import sources
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.sources import Manifests

OpenVersion = Callable[[statemanager_pb2.VersionManifest], memoryview]


@contextlib.contextmanager
def open_copies(
    copies: Manifests, *, config: WorkerConfig, open_here: OpenVersion
) -> Iterator[sources.VersionSource]:
    """Open and verify the copies: mapped on this host, streamed from another.

    Raises:
        PlexError: `not_found` when a copy is gone, `checksum_mismatch`, `unavailable`.
    """
    from plexsvc.statelink import version_source  # noqa: PLC0415 - gRPC: after the fork

    wanted = sources.needed(copies, node_id=config.node_id)
    elsewhere = version_source.VersionSource(config)

    def opened(manifest: statemanager_pb2.VersionManifest) -> memoryview:
        if manifest.node_id in {"", config.node_id}:
            return open_here(manifest)
        return elsewhere(manifest)

    with contextlib.closing(elsewhere):
        views = [opened(manifest) for manifest in wanted]
        for manifest, view in zip(wanted, views, strict=True):
            sources.verify_blocks(manifest, view)
        yield sources.VersionSource(wanted, views)


def scalars_of(copies: Manifests, *, rank: int) -> dict[str, int | float | str]:
    """Return the scalars of `rank`, or of the first one known: all ranks count alike."""
    by_rank: dict[int, dict[str, int | float | str]] = {}
    for copy in copies:
        found = json.loads(copy.scalars_json or "{}")
        by_rank |= {int(number): dict(scalars) for number, scalars in found.items()}
    return by_rank.get(rank) or next((by_rank[number] for number in sorted(by_rank)), {})


def applied_seq_of(copies: Manifests) -> int:
    """Return the last number that every rank had applied; 0 without copies."""
    return min((copy.applied_seq for copy in copies), default=0)

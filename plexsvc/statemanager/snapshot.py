"""A WPG's managed state, readable wherever it is: what publishing, saving and digests work from."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.ids import JobId, WpgId
from plexsvc.residency import Residency
from plexsvc.statemanager.core import WpgState
from plexsvc.statemanager.links import RankLink, Scalars
from plexsvc.statemanager.node import Node
from plexsvc.weights import manifests, pieces, reading
from plexsvc.weights.pieces import Bytes, RegionBytes, Tensor
from plexsvc.weights.reading import Published

GRADIENTS = "grad"
"""Partial sums of each rank until a step: keyed by rank, never assembled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State between two operations; valid while the caller holds the WPG's lock."""

    job_id: JobId
    index: tuple[CanonicalPiece, ...]
    region: RegionBytes
    scalars: dict[int, Scalars]
    applied_seq: int
    has_gradients: bool
    """Whether a window of accumulated gradients is open."""


def take(node: Node, wpg_id: WpgId) -> Snapshot:
    """Ask resident ranks for their scalars and return the state; the caller holds the WPG's lock.

    Raises:
        PlexError: `not_found`, `worker_died`.
    """
    wpg, links = node.state_of(wpg_id), node.links_of(wpg_id)
    if wpg.residency is Residency.DEVICE:
        for link in links:
            link.export()
        with node.lock:
            applied = min((link.last_export.applied_seq for link in links), default=0)
            node.ledger.note_applied(wpg_id, applied)
    by_rank = {link.rank: link for link in links}
    return Snapshot(
        job_id=wpg.job_id,
        index=tuple(piece for link in links for piece in link.pieces),
        # A region of a GPU is copied off it once, however many tensors lie in it.
        region=functools.cache(lambda rank, name: _region_bytes(wpg, by_rank[rank], name)),
        scalars={link.rank: link.last_export.scalars for link in links},
        applied_seq=wpg.applied_seq,
        has_gradients=any(_has_gradients(wpg, link) for link in links),
    )


def of_copies(copies: Sequence[Published], *, job_id: JobId) -> Snapshot:
    """Return the state that the complete copies of a WPG's nodes make up together."""
    index, region = reading.joined(copies)
    known = [copy.manifest for copy in copies]
    return Snapshot(
        job_id=job_id,
        index=tuple(index),
        region=region,
        scalars=dict(manifests.scalars_by_rank(known)),
        applied_seq=manifests.applied_seq(known),
        has_gradients=False,
    )


def digests(snapshot: Snapshot) -> dict[str, str]:
    """Return a sha256 per kind over tensors in canonical order, the same for every layout.

    Gradients go rank by rank, and tensors of which this node has a part box by box.
    """
    hashes: dict[str, hashlib._Hash] = {}
    shared = [piece for piece in snapshot.index if piece.kind != GRADIENTS]
    for tensor in pieces.tensors(shared):
        found = hashes.setdefault(tensor.kind, hashlib.sha256())
        found.update(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        _update(found, tensor, snapshot)
    own = [piece for piece in snapshot.index if piece.kind == GRADIENTS]
    for piece in sorted(own, key=lambda p: (p.name, p.rank, tuple(p.start))):
        found = hashes.setdefault(GRADIENTS, hashlib.sha256())
        found.update(f"{piece.name} {piece.rank} {list(piece.start)} {list(piece.size)}\n".encode())
        _update_pieces(found, [piece], snapshot)
    return {kind: found.hexdigest() for kind, found in hashes.items()}


def _has_gradients(wpg: WpgState, link: RankLink) -> bool:
    regions = wpg.ranks[link.rank].regions
    return any(name in regions and regions[name].is_droppable for name in link.last_export.dirty)


def _update(found: hashlib._Hash, tensor: Tensor, snapshot: Snapshot) -> None:
    if pieces.is_complete(tensor):
        found.update(np.ascontiguousarray(pieces.whole(tensor, snapshot.region)).data)
    else:
        _update_pieces(found, tensor.parts, snapshot)


def _update_pieces(
    found: hashlib._Hash, parts: Sequence[CanonicalPiece], snapshot: Snapshot
) -> None:
    for part in parts:
        found.update(f"{list(part.start)} {list(part.size)}\n".encode())
        view = pieces.piece_view(snapshot.region(part.rank, part.region), part)
        found.update(np.ascontiguousarray(view).data)


def _region_bytes(wpg: WpgState, link: RankLink, name: str) -> Bytes:
    region = wpg.ranks[link.rank].regions[name]
    if region.is_droppable and name not in link.last_export.dirty:  # clean, so zero
        return np.zeros(region.nbytes, dtype=np.uint8)
    return link.memory.view(name)

"""A WPG's managed state, readable wherever it is: what versions, checkpoints and digests hold."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.ids import WpgId
from plexsvc.residency import Residency
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.core import WpgEntry
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.node import ManagedNode
from plexsvc.weights import manifests, pieces, reading
from plexsvc.weights.manifests import Scalars
from plexsvc.weights.pieces import GRADIENTS, Array, RegionBytes
from plexsvc.weights.reading import OpenedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """State between two operations: live, for as long as the WPG's lock is held, or copied."""

    index: tuple[CanonicalPiece, ...]
    """Without gradients that are zero."""
    region: RegionBytes
    scalars: dict[int, Scalars]
    applied_seq: int


def take(node: ManagedNode, wpg_id: WpgId, *, beside: bool = False) -> StateSnapshot:
    """Ask resident ranks for their scalars and return the state; the caller holds the WPG's lock.

    `beside` an operation that writes no weights, the state is that before it, but for gradients.

    Raises:
        PlexError: `not_found`, `worker_died`.
    """
    wpg, links = node.state_of(wpg_id), node.links_of(wpg_id)
    exports = {link.rank: link.export(beside=True) for link in links} if beside else {}
    if wpg.residency is Residency.DEVICE and not beside:
        for link in links:
            link.export()
        with node.lock:
            applied = min((link.last_export.applied_seq for link in links), default=0)
            node.ledger.wpgs[wpg_id].applied_seq = applied
    by_rank = {link.rank: link for link in links}
    return StateSnapshot(
        index=tuple(piece for link in links for piece in _kept(wpg, link)),
        # A region of a GPU is copied off it once, however many tensors lie in it.
        region=functools.cache(lambda rank, name: by_rank[rank].memory.view(name)),
        scalars={link.rank: exports.get(link.rank, link.last_export).scalars for link in links},
        applied_seq=min((e.applied_seq for e in exports.values()), default=wpg.applied_seq),
    )


def has_gradients(node: ManagedNode, wpg_id: WpgId) -> bool:
    """Whether a window of accumulated gradients is open, as the ranks last said."""
    wpg = node.state_of(wpg_id)
    return any(
        name in link.last_export.dirty and region.is_droppable
        for link in node.links_of(wpg_id)
        for name, region in wpg.ranks[link.rank].regions.items()
    )


def of_copies(copies: Sequence[OpenedPart]) -> StateSnapshot:
    """Return the state that the copies of a WPG's nodes make up together."""
    index, region = reading.joined(copies)
    known = [copy.manifest for copy in copies]
    return StateSnapshot(
        index=tuple(index),
        region=region,
        scalars=dict(manifests.scalars_by_rank(known)),
        applied_seq=manifests.applied_seq(known),
    )


def digests(snapshot: StateSnapshot, caller: WaitingCaller) -> dict[str, str]:
    """Return a hash per kind over tensors in canonical order, the same for every layout.

    Gradients go rank by rank, and tensors of which only a part is here box by box.

    Raises:
        PlexError: `cancelled`.
    """
    hashes: dict[str, hashlib._Hash] = {}
    shared = [piece for piece in snapshot.index if piece.kind != GRADIENTS]
    for tensor in pieces.tensors(shared):
        found = hashes.setdefault(tensor.kind, hashlib.sha256())
        found.update(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if pieces.is_complete(tensor):
            _hash(found, pieces.whole(tensor, snapshot.region), caller)
        else:
            _update_pieces(found, tensor.parts, snapshot, caller)
    own = [piece for piece in snapshot.index if piece.kind == GRADIENTS]
    for piece in sorted(own, key=lambda p: (p.name, p.rank, tuple(p.start))):
        found = hashes.setdefault(GRADIENTS, hashlib.sha256())
        found.update(f"{piece.name} {piece.rank}\n".encode())
        _update_pieces(found, [piece], snapshot, caller)
    return {kind: found.hexdigest() for kind, found in hashes.items()}


def _kept(wpg: WpgEntry, link: RankLink) -> list[CanonicalPiece]:
    """Return a rank's pieces but those of clean droppable regions, which are zero."""
    regions = wpg.ranks[link.rank].regions
    clean = {name for name, region in regions.items() if region.is_droppable}
    clean -= link.last_export.dirty
    return [piece for piece in link.pieces if piece.region not in clean]


def _update_pieces(
    found: hashlib._Hash,
    parts: Sequence[CanonicalPiece],
    snapshot: StateSnapshot,
    caller: WaitingCaller,
) -> None:
    for part in parts:
        found.update(f"{list(part.start)} {list(part.size)}\n".encode())
        _hash(found, pieces.piece_view(snapshot.region(part.rank, part.region), part), caller)


def _hash(found: hashlib._Hash, array: Array, caller: WaitingCaller) -> None:
    """Hash an array's bytes: quickly, as all of a model's are."""
    caller.advance(array.nbytes)
    found.update(xxhash.xxh3_128_digest(np.ascontiguousarray(array).data))

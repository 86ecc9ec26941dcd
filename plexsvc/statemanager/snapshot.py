"""A WPG's managed state, readable wherever it is: what versions, checkpoints and digests hold."""

from __future__ import annotations

import functools
import hashlib
import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np
import xxhash

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc.ids import WpgId
from plexsvc.residency import Residency
from plexsvc.statelink.far import Far
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.entries import WpgEntry
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.node import ManagedNode
from plexsvc.weights import manifests, pieces, reading
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.manifests import Scalars
from plexsvc.weights.pieces import GRADIENTS, Array, RegionBytes, Tensor
from plexsvc.weights.reading import OpenedPart

MAP_NORESERVE: Final = 0x4000
"""Of Linux; Python names it from 3.13 on."""

GATHERED_BYTES: Final = 64 << 20
"""Of tensors with pieces on other nodes: so many, or one tensor, are brought here at once."""


class FarPart:
    """A part of a copy that another node holds; only what was brought last can be read."""

    def __init__(self, far: Far, manifest: VersionManifest) -> None:
        self._far = far
        # Addresses for all of it: memory is taken only by what comes.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._space = mmap.mmap(-1, max(1, manifest.nbytes), flags=flags)
        self._data = memoryview(self._space)
        self.opened = OpenedPart(manifest=manifest, data=self._data[: manifest.nbytes])

    def bring(self, wanted: Iterable[CanonicalPiece]) -> None:
        """Bring the blocks in which some of its pieces lie; those from before are let go.

        Raises:
            PlexError: `checksum_mismatch`, `unavailable`.
        """
        lows = set[int]()
        for piece in wanted:
            end = piece.offset + pieces.nbytes_of(piece)
            lows.update(range(piece.offset // BLOCK_BYTES * BLOCK_BYTES, end, BLOCK_BYTES))
        if lows:
            self._space.madvise(mmap.MADV_DONTNEED)
            self._far.read_into(self._room, self.opened.manifest, lows=sorted(lows))

    def bring_into(self, target: memoryview) -> None:
        """Bring all of it to memory of the caller's.

        Raises:
            PlexError: `checksum_mismatch`, `unavailable`.
        """
        self._far.read_into(lambda low, nbytes: target[low : low + nbytes], self.opened.manifest)

    def _room(self, low: int, nbytes: int) -> memoryview:
        return self._data[low : low + nbytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """State between two operations: live, for as long as the WPG's lock is held, or copied."""

    index: tuple[CanonicalPiece, ...]
    """Without gradients that are zero."""
    region: RegionBytes
    scalars: dict[int, Scalars]
    applied_seq: int
    far: Mapping[str, FarPart] = field(default_factory=dict)
    """By region: what other nodes hold, of which only what is brought is here."""

    @property
    def only_far(self) -> FarPart | None:
        """The one part that it is, if another node holds it, packed as a copy of it would be."""
        packed, _ = pieces.pack(pieces.distinct(self.index), region="")
        is_packed = [source for source, target in packed if source.offset == target.offset]
        if len(self.far) != 1 or len(is_packed) != len(self.index):
            return None
        (region, part), *_ = self.far.items()
        return part if {piece.region for piece in self.index} == {region} else None

    def bring(self, wanted: Collection[CanonicalPiece]) -> None:
        """Bring pieces here that other nodes hold, in place of those that were brought before.

        Raises:
            PlexError: `checksum_mismatch`, `unavailable`.
        """
        for region, part in self.far.items():
            part.bring([piece for piece in wanted if piece.region == region])

    def gathered(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield tensors once all their pieces are here; each may be read before the next is asked.

        Raises:
            PlexError: as `bring`.
        """
        batch, nbytes = list[Tensor](), 0
        for tensor in tensors if self.far else ():
            if batch and nbytes + tensor.nbytes > GATHERED_BYTES:
                yield from self._brought(batch)
                batch, nbytes = [], 0
            batch.append(tensor)
            nbytes += tensor.nbytes
        yield from self._brought(batch) if self.far else tensors

    def _brought(self, batch: Sequence[Tensor]) -> Sequence[Tensor]:
        self.bring([part for tensor in batch for part in tensor.parts])
        return batch


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


def of_copies(copies: Sequence[OpenedPart | FarPart]) -> StateSnapshot:
    """Return the state that the copies of a WPG's nodes make up together.

    Of what several hold the first one's is read.
    """
    opened = [copy.opened if isinstance(copy, FarPart) else copy for copy in copies]
    index, region = reading.joined(opened)
    known = [copy.manifest for copy in opened]
    return StateSnapshot(
        index=tuple(index),
        region=region,
        scalars=dict(manifests.scalars_by_rank(known)),
        applied_seq=manifests.applied_seq(known),
        far={str(n): copy for n, copy in enumerate(copies) if isinstance(copy, FarPart)},
    )


def digests(snapshot: StateSnapshot, caller: WaitingCaller) -> dict[str, str]:
    """Return a hash per kind over tensors in canonical order, the same for every layout.

    Gradients go rank by rank, and tensors of which only a part is here box by box.

    Raises:
        PlexError: `cancelled`.
    """
    hashes: dict[str, hashlib._Hash] = {}
    shared = [piece for piece in snapshot.index if piece.kind != GRADIENTS]
    for tensor in snapshot.gathered(pieces.tensors(shared)):
        found = hashes.setdefault(tensor.kind, hashlib.sha256())
        found.update(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if pieces.is_complete(tensor):
            _hash(found, pieces.whole(tensor, snapshot.region), caller)
        else:
            _update_pieces(found, tensor.parts, snapshot, caller)
    own = [piece for piece in snapshot.index if piece.kind == GRADIENTS]
    own.sort(key=lambda p: (p.name, p.rank, tuple(p.start)))
    each = chain.from_iterable(pieces.tensors([piece]) for piece in own)
    for tensor in snapshot.gathered(each):
        found = hashes.setdefault(GRADIENTS, hashlib.sha256())
        found.update(f"{tensor.name} {tensor.parts[0].rank}\n".encode())
        _update_pieces(found, tensor.parts, snapshot, caller)
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

"""Reader of published versions: boxes of tensors out of the opened bytes of one or more nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from plexclient.wire.v1.statemanager_pb2 import (
    CanonicalPiece,
    PublishedVersion,
    VersionManifest,
)
from plexsvc.weights import pieces
from plexsvc.weights.boxes import Box, Cover, Overlap, cover
from plexsvc.weights.pieces import Array, RegionBytes, Tensor

PARAMETERS = "param"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPart:
    """One node's part of a version, opened: its manifest and its bytes, read-only."""

    manifest: VersionManifest
    data: memoryview


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """A version as one reader sees it: the manifests of all holders, and the parts it needs."""

    manifests: list[VersionManifest] = field(default_factory=list)
    parts: list[OpenedPart] = field(default_factory=list)
    published: PublishedVersion | None = None
    """What was opened: another process may open it, too."""


class VersionReader:
    """The tensors of a version: parameters by name, those of the optimizer by `kind/name`.

    The reader and every view of it keep the opened bytes alive.
    """

    def __init__(self, published: Sequence[OpenedPart]) -> None:
        index, self._region = joined(published)
        self._tensors = {key_of(tensor): tensor for tensor in pieces.tensors(index)}

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def find(self, name: str) -> Tensor | None:
        """Return a tensor and the pieces that hold it, None for an unknown name."""
        return self._tensors.get(name)

    def cover(self, tensor: Tensor, box: Box) -> Cover:
        """Return which parts of `tensor` fill `box`."""
        return cover(box, [pieces.box_of(part) for part in tensor.parts])

    def view(self, tensor: Tensor, overlap: Overlap) -> Array:
        """Return a read-only view of an overlap's elements; nothing is copied."""
        return pieces.overlap_view(tensor, overlap, self._region)

    def read(self, tensor: Tensor, box: Box) -> Array:
        """Return a copy of the elements of `box`.

        Raises:
            PlexError: `not_found` when the parts do not cover the box.
        """
        return pieces.assemble(tensor, box, region=self._region)


def key_of(tensor: Tensor) -> str:
    """Return what a tensor is called among those of all kinds, and in files."""
    return tensor.name if tensor.kind == PARAMETERS else f"{tensor.kind}/{tensor.name}"


def joined(published: Sequence[OpenedPart]) -> tuple[list[CanonicalPiece], RegionBytes]:
    """Return the pieces of all parts, whose region is the number of their part, and the bytes.

    Raises:
        PlexError: `bad_request` for a piece that does not lie in its bytes.
    """
    index = []
    data = [np.frombuffer(part.data, dtype=np.uint8) for part in published]
    for number, part in enumerate(published):
        for piece in part.manifest.pieces:
            pieces.check_piece(piece, {piece.region: len(data[number])})
            placed = CanonicalPiece()
            placed.CopyFrom(piece)
            placed.region = str(number)
            index.append(placed)
    return index, lambda _rank, number: data[int(number)]

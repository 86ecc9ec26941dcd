"""A state client without a state manager: regions over memory files, parked and restored."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.residency import Home
from plexsvc.statelink.client import ExportReport, MoveHandlers, RegionSpec
from plexsvc.statelink.mapping import Extent, FixedMapping, round_to_pages
from plexsvc.statelink.regions import on_host
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.reading import OpenedPart

if TYPE_CHECKING:
    import torch


class FakeRegion:
    """A region over a memory file of its own."""

    def __init__(self, spec: RegionSpec) -> None:
        self.name, self.nbytes = spec.name, spec.nbytes
        self.is_read_only = False
        self.mapping = FixedMapping(spec.nbytes)

    def tensor(self) -> torch.Tensor:
        import torch

        buffer = (ctypes.c_uint8 * self.nbytes).from_address(self.mapping.address)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def attach(self, data: bytes | None) -> None:
        """Map fresh pages, zero or holding `data`."""
        nbytes = round_to_pages(self.nbytes)
        fd = os.memfd_create(self.name)
        try:
            os.ftruncate(fd, nbytes)
            if data is not None:
                os.pwrite(fd, data, 0)
            self.mapping.attach(fd, [Extent(offset=0, nbytes=nbytes)])
        finally:
            os.close(fd)


class FakeStateClient:
    """Grants whatever is asked; `park` takes the pages away, `unpark` brings the bytes back."""

    def __init__(self, handlers: MoveHandlers | None = None) -> None:
        self.handlers = handlers
        self.regions: dict[str, FakeRegion] = {}
        self.specs: dict[str, RegionSpec] = {}
        self.pieces: list[statemanager_pb2.CanonicalPiece] = []
        self.staged: dict[bytes, tuple[list[common_pb2.TensorSpec], bytearray]] = {}
        self.sealed: set[bytes] = set()
        self.full_for = 0
        """How many results will find no room."""
        self.versions: dict[tuple[str, int], OpenedPart] = {}
        self._host: dict[str, bytes] = {}
        self._scalars: dict[str, int | float | str] = {}
        self._dirty: frozenset[str] = frozenset()

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, FakeRegion]:
        new = {}
        for spec in regions:
            new[spec.name], self.specs[spec.name] = FakeRegion(spec), spec
            if spec.home is Home.LENT:
                new[on_host(spec.name)] = FakeRegion(spec)
        for region in new.values():
            region.attach(None)
        self.regions |= new
        return new

    @property
    def is_parked(self) -> bool:
        return any(not region.mapping.is_attached for region in self.regions.values())

    def stepped(self, report: ExportReport) -> None:
        assert self.is_parked
        self._note(report)

    def _note(self, report: ExportReport) -> None:
        self._scalars, self._dirty = report.scalars, report.dirty

    def seal(self, name: str) -> None:
        assert self.specs[name].shared, name

    def set_index(self, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        self.pieces = list(pieces)

    def open_staged(self, staging_id: bytes) -> tuple[list[common_pb2.TensorSpec], memoryview]:
        if staging_id not in self.staged:
            raise PlexError(ErrorCode.NOT_FOUND, f"nothing is staged under {staging_id!r}")
        specs, data = self.staged[staging_id]
        return specs, memoryview(bytes(data))

    def create_staged(
        self, specs: Sequence[common_pb2.TensorSpec], nbytes: int
    ) -> tuple[bytes, memoryview]:
        if self.full_for:
            self.full_for -= 1
            raise PlexError(ErrorCode.STAGING_FULL, "others' results wait there")
        staging_id = len(self.staged).to_bytes(16, "little")
        self.staged[staging_id] = (list(specs), bytearray(nbytes))
        return staging_id, memoryview(self.staged[staging_id][1])

    def seal_staged(self, staging_id: bytes) -> None:
        self.sealed.add(staging_id)

    def drop_staged(self, staging_id: bytes) -> None:
        self.staged.pop(staging_id, None)

    def open_version(self, version: VersionId) -> OpenedPart:
        return self.versions[version.deployment_id, version.version]

    def fetch_version(
        self,
        version: statemanager_pb2.PublishedVersion,
        holder: statemanager_pb2.VersionHolder,
    ) -> OpenedPart:
        del holder
        return self.open_version(VersionId.of(version))

    def park(self) -> dict[str, int]:
        """Copy what is dirty, take every page away; return the bytes kept by region."""
        assert self.handlers is not None
        self._note(self.handlers.export(beside=False))
        kept: dict[str, int] = {}
        for name, spec in self.specs.items():
            region = self.regions[name]
            if spec.home is Home.HOST:
                continue
            if self._is_kept(spec):
                kept[name] = region.nbytes
                if spec.home is Home.LENT:
                    self.regions[on_host(name)].tensor().copy_(region.tensor())
                else:
                    self._host[name] = bytes(region.tensor().numpy())
            region.mapping.park()
        return kept

    def _is_kept(self, spec: RegionSpec) -> bool:
        return spec.name in self._dirty or not spec.droppable

    def unpark(self) -> None:
        """Bring every region back on new pages at its old address."""
        assert self.handlers is not None
        for name, spec in self.specs.items():
            if spec.home is Home.LENT and self._is_kept(spec):
                self._host[name] = bytes(self.regions[on_host(name)].tensor().numpy())
            if spec.home is not Home.HOST:
                self.regions[name].attach(self._host.pop(name, None))
        self.handlers.restored(self._scalars)

    def read(self, piece: statemanager_pb2.CanonicalPiece) -> torch.Tensor:
        """Return a copy of what a piece holds."""
        import torch

        dtype = getattr(torch, DTYPES[piece.dtype].torch)
        flat = self.regions[piece.region].tensor()[piece.offset :]
        flat = flat[: flat.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(tuple(piece.size), tuple(piece.stride)).clone()

    def publish(self, deployment_id: str, version: int) -> OpenedPart:
        """Freeze this rank's parameters as a version that `open_version` opens."""
        data = memoryview(bytes(self.regions["params"].tensor().numpy()))
        manifest = statemanager_pb2.VersionManifest(
            deployment_id=deployment_id,
            version=version,
            nbytes=len(data),
            pieces=[piece for piece in self.pieces if piece.kind == "param"],
            block_checksums=block_checksums(data),
        )
        self.versions[deployment_id, version] = OpenedPart(manifest=manifest, data=data)
        return self.versions[deployment_id, version]


def assemble(
    held: Sequence[Mapping[tuple[str, str], list[tuple[bytes, np.ndarray]]]], kind: str
) -> dict[str, np.ndarray]:
    """Return whole tensors of `kind` from all ranks' pieces; copies must agree to the bit."""
    full: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    parts = [
        (name, statemanager_pb2.CanonicalPiece.FromString(data), values)
        for rank in held
        for (piece_kind, name), found in rank.items()
        if piece_kind == kind
        for data, values in found
    ]
    for name, piece, values in parts:
        shape = tuple(piece.global_shape)
        target = full.setdefault(name, np.full(shape, np.nan, np.float32))
        mark = seen.setdefault(name, np.zeros(shape, bool))
        box = tuple(slice(a, a + n) for a, n in zip(piece.start, piece.size, strict=True))
        if mark[box].any():
            assert np.array_equal(target[box], values), f"copies of {name} differ"
        target[box], mark[box] = values, True
    for name, mark in seen.items():
        assert mark.all(), f"hole in {name}"
    return full

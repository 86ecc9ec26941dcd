"""Copies a published version into live weights: each engine tensor takes just its boxes.

A `Target` says how one live tensor is filled: by a box of a checkpoint tensor (the fast path), or
by replaying a chain of view operations on the whole tensor, for loaders that transpose or index.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.engines.base import Published
from plexsvc.weights.boxes import Box, Need, cover, element_offset

DTYPES: Final = {
    "F32": torch.float32,
    "F64": torch.float64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}

Op = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A recorded tensor method: name, positional arguments, keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A live tensor, and the checkpoint tensor and operations that fill it."""

    live: torch.Tensor
    name: str
    shape: tuple[int, ...]
    ops: tuple[Op, ...]

    def box(self) -> Box | None:
        """Return the box that `ops` select, None when they do more than narrow."""
        start, size = [0] * len(self.shape), list(self.shape)
        for name, args, kwargs in self.ops:
            if name == "contiguous":
                continue
            if name != "narrow":
                return None
            given = dict(zip(("dim", "start", "length"), args, strict=False)) | dict(kwargs)
            axis = given["dim"] % len(size)
            start[axis] += int(given["start"])
            size[axis] = int(given["length"])
        return Box(tuple(start), tuple(size)) if tuple(size) == tuple(self.live.shape) else None


@dataclass(frozen=True, slots=True)
class Source:
    """A piece and the mapped bytes it lies in."""

    piece: statemanager_pb2.CanonicalPiece
    data: memoryview

    def tensor(self, box: Box) -> torch.Tensor:
        """Return a read-only view of `box` (global coordinates), which lies inside the piece."""
        dtype, piece = DTYPES.get(self.piece.dtype), self.piece
        reach = sum((n - 1) * s for n, s in zip(piece.size, piece.stride, strict=True)) + 1
        if dtype is None or piece.offset + reach * dtype.itemsize > len(self.data):
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"piece {piece.name!r} of the manifest (dtype {piece.dtype}, offset "
                f"{piece.offset}, {reach} elements) does not lie in its {len(self.data)} bytes",
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            flat = torch.frombuffer(self.data, dtype=dtype, count=reach, offset=piece.offset)
        return torch.as_strided(flat, box.size, tuple(piece.stride), element_offset(piece, box))


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
def fill(targets: Iterable[Target], published: Sequence[Published]) -> int:
    """Fill every target from `published`; return the bytes written.

    Coverage of all targets is checked before the first is touched.

    Raises:
        PlexError: `bad_request` when the version lacks something or has another shape.
    """
    sources = _by_name(published)
    work = [
        (target, box or Box.whole(target.shape), box is not None)
        for target in targets
        for box in (target.box(),)
    ]
    plans = [
        cover(
            Need(name=target.name, shape=target.shape, box=box),
            [source.piece for source in sources.get(target.name, ())],
        )
        for target, box, _ in work
    ]
    written = 0
    for (target, box, direct), plan in zip(work, plans, strict=True):
        into = target.live if direct else _scratch(target, sources[target.name][0])
        for overlap in plan:
            view = into
            inside = overlap.box.relative_to(box)
            for axis, (low, length) in enumerate(zip(inside.start, inside.size, strict=True)):
                view = view.narrow(axis, low, length)
            view.copy_(sources[target.name][overlap.index].tensor(overlap.box))
        if not direct:
            target.live.copy_(replay(into, target.ops).view(target.live.shape))
        written += target.live.numel() * target.live.element_size()
    return written


def replay(tensor: torch.Tensor, ops: Iterable[Op]) -> torch.Tensor:
    """Return `tensor` after the recorded view operations."""
    for name, args, kwargs in ops:
        tensor = getattr(tensor, name)(*args, **dict(kwargs))
    return tensor


def _by_name(published: Sequence[Published]) -> dict[str, list[Source]]:
    """Return the parameter pieces of all nodes by tensor; masters where no parameters are."""
    found: dict[str, dict[str, list[Source]]] = {"param": {}, "master": {}}
    for version in published:
        for piece in version.manifest.pieces:
            if piece.kind in found and all(piece.size):
                found[piece.kind].setdefault(piece.name, []).append(Source(piece, version.data))
    return found["master"] | found["param"]


def _scratch(target: Target, source: Source) -> torch.Tensor:
    return torch.empty(target.shape, dtype=DTYPES.get(source.piece.dtype, torch.float32))

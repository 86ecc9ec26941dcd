"""Copy of a published version into live weights: each engine tensor takes just its boxes.

A `Target` says how one live tensor is filled: by a box of a checkpoint tensor (the fast path), or
by replaying a chain of view operations on the whole tensor, for loaders that transpose or index.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from plexsvc import progress
from plexsvc.errors import bad_request
from plexsvc.weights.boxes import Box, Cover, Overlap
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.pieces import Array, Tensor
from plexsvc.weights.reading import Published, VersionReader

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A target, the box it wants, and the parts of a published tensor that fill the box."""

    target: Target
    box: Box
    is_direct: bool
    tensor: Tensor
    overlaps: Sequence[Overlap]


def fill(targets: Iterable[Target], published: Sequence[Published]) -> Iterator[int]:
    """Fill the targets from `published`, one after the other; yield the bytes of each.

    Coverage of all targets is checked before the first is touched, when the first is asked for.

    Raises:
        PlexError: `bad_request` when the version lacks something or has another shape.
    """
    reader = VersionReader(published)
    plans = [_plan(target, reader) for target in targets]
    for plan in plans:
        _fill(plan, reader)
        yield plan.target.live.numel() * plan.target.live.element_size()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
def _fill(plan: _Plan, reader: VersionReader) -> None:
    target, dtype = plan.target, getattr(torch, DTYPES[plan.tensor.dtype].torch)
    into = target.live if plan.is_direct else torch.empty(target.shape, dtype=dtype)
    for overlap in plan.overlaps:
        bits = _from_numpy(reader.view(plan.tensor, overlap))
        into[overlap.box.within(plan.box)].copy_(bits.view(dtype))
        progress.advance()
    if not plan.is_direct:
        target.live.copy_(replay(into, target.ops).view(target.live.shape))


def replay(tensor: torch.Tensor, ops: Iterable[Op]) -> torch.Tensor:
    """Return `tensor` after the recorded view operations."""
    for name, args, kwargs in ops:
        tensor = getattr(tensor, name)(*args, **dict(kwargs))
    return tensor


def _plan(target: Target, reader: VersionReader) -> _Plan:
    direct, tensor = target.box(), reader.find(target.name)
    box = direct or Box.whole(target.shape)
    if tensor is not None and tensor.shape != target.shape:
        raise bad_request(
            f"{target.name!r} was published with shape {list(tensor.shape)} and this engine's "
            f"model has {list(target.shape)}; publish a deployment of the same model",
            tensor=target.name,
        )
    found = reader.cover(tensor, box) if tensor is not None else Cover(overlaps=[], missing=[box])
    if tensor is None or found.missing:
        raise bad_request(
            f"the published version lacks {sum(part.volume for part in found.missing)} of "
            f"{box.volume} elements of {target.name!r}, first at {list(found.missing[0].start)}; "
            "publish a deployment of the same model",
            tensor=target.name,
        )
    return _Plan(
        target=target,
        box=box,
        is_direct=direct is not None,
        tensor=tensor,
        overlaps=found.overlaps,
    )


def _from_numpy(array: Array) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)

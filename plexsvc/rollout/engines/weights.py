"""Copy of a published version into live weights: each engine tensor takes just its boxes.

A `LiveTensor` says how one live tensor is filled: by a box of a checkpoint tensor (the fast path),
or by replaying a chain of view operations on the whole tensor, for loaders that transpose or index.

A version of adapters holds no model. Where a weight has an adapter, it becomes the model's own
weight with the adapter merged, computed in float32 and rounded once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from plexsvc import lora, progress
from plexsvc.errors import bad_request
from plexsvc.weights.boxes import Box, Cover, Overlap
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.pieces import Array, Tensor
from plexsvc.weights.reading import OpenedPart, VersionReader

Op = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A recorded tensor method: name, positional arguments, keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
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
class _LowRankDelta:
    """What a version adds to one weight: `scale * b @ a`."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def merged(self, values: torch.Tensor, box: Box) -> torch.Tensor:
        """Return float32 `values`, a box of the weight, with what the adapter adds to them."""
        (row, column), (rows, columns) = box.start, box.size
        b = self.b[row : row + rows].to(values.device)
        a = self.a[:, column : column + columns].to(values.device)
        return torch.addmm(values.float(), b, a, alpha=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopyPlan:
    """A target, the box it wants, and the parts of a published tensor that fill the box."""

    target: LiveTensor
    box: Box
    is_direct: bool
    tensor: Tensor
    overlaps: Sequence[Overlap]
    adapter: _LowRankDelta | None


def fill(
    targets: Iterable[LiveTensor],
    published: Sequence[OpenedPart],
    *,
    model: Callable[[], Sequence[OpenedPart]] = tuple,
    is_on_model: bool = False,
) -> Iterator[int]:
    """Do as `begin` when the first is asked for."""
    yield from begin(targets, published, model=model, is_on_model=is_on_model)


def begin(
    targets: Iterable[LiveTensor],
    published: Sequence[OpenedPart],
    *,
    model: Callable[[], Sequence[OpenedPart]] = tuple,
    is_on_model: bool = False,
) -> Iterator[int]:
    """Return what fills the targets from `published`, one after the other, by the bytes of each.

    A version of adapters is merged into the weights of `model`; where the live weights are that
    `model` with adapters of the same deployment, or none, only those with an adapter are filled.
    Coverage of all targets is checked now; the first is touched when it is asked for.

    Raises:
        PlexError: `bad_request` when the version lacks something or has another shape.
    """
    reader = VersionReader(published)
    adapters: Mapping[str, _LowRankDelta] = {}
    if reader.find(lora.SCALE) is not None:
        targets = list(targets)
        adapters = _adapters(reader, targets)
        reader = VersionReader(model())
        if is_on_model:
            targets = [target for target in targets if target.name in adapters]
    plans = [_plan(target, reader, adapters) for target in targets]
    return _filling(plans, reader)


def _filling(plans: Sequence[_CopyPlan], reader: VersionReader) -> Iterator[int]:
    for plan in plans:
        _fill(plan, reader)
        yield plan.target.live.numel() * plan.target.live.element_size()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
def _fill(plan: _CopyPlan, reader: VersionReader) -> None:
    target, dtype = plan.target, getattr(torch, DTYPES[plan.tensor.dtype].torch)
    into, is_in_place = target.live, plan.is_direct and plan.adapter is None
    if not is_in_place:
        device = target.live.device if plan.adapter is not None else None
        into = torch.empty(plan.box.size, dtype=dtype, device=device)
    for overlap in plan.overlaps:
        bits = _from_numpy(reader.view(plan.tensor, overlap))
        into[overlap.box.within(plan.box)].copy_(bits.view(dtype))
        progress.advance()
    if plan.adapter is not None:
        into = plan.adapter.merged(into, plan.box)
    if not is_in_place:
        ops = () if plan.is_direct else target.ops
        target.live.copy_(replay(into, ops).view(target.live.shape))


def replay(tensor: torch.Tensor, ops: Iterable[Op]) -> torch.Tensor:
    """Return `tensor` after the recorded view operations."""
    for name, args, kwargs in ops:
        tensor = getattr(tensor, name)(*args, **dict(kwargs))
    return tensor


def _adapters(reader: VersionReader, targets: Iterable[LiveTensor]) -> Mapping[str, _LowRankDelta]:
    """Return a version's adapters by the weight that they are merged into.

    Raises:
        PlexError: `bad_request` for one that no target has, or that does not fit.
    """

    def read(name: str) -> torch.Tensor:
        tensor = reader.find(name)
        if tensor is None:
            raise bad_request(f"the published version lacks {name!r}; publish it again")
        return torch.from_numpy(reader.read(tensor, Box.whole(tensor.shape))).view(torch.float32)

    left, found = set(reader.names) - {lora.SCALE}, dict[str, _LowRankDelta]()
    scale = float(read(lora.SCALE))
    for target in targets:
        names = lora.names_of(target.name)
        if target.name in found or not left.issuperset(names):
            continue
        a, b = map(read, names)
        check_adapter(a, b, of=target.name, shape=target.shape)
        found[target.name] = _LowRankDelta(a=a, b=b, scale=scale)
        left.difference_update(names)
    refuse_untaken(left)
    return found


def check_adapter(a: torch.Tensor, b: torch.Tensor, *, of: str, shape: Sequence[int]) -> None:
    """Check that B times A has the shape of the weight that it is added to.

    Raises:
        PlexError: `bad_request`.
    """
    if (b.size(0), a.size(1)) != tuple(shape):
        raise bad_request(
            f"the adapter of {of!r} is {b.size(0)} by {a.size(1)}, and this engine's model has "
            f"{list(shape)}; publish a deployment of the same model",
            tensor=of,
        )


def refuse_untaken(names: Collection[str]) -> None:
    """Check that no tensor of a version is left.

    Raises:
        PlexError: `bad_request`.
    """
    if names:
        raise bad_request(
            f"the published version has {len(names)} tensors that no weight of this engine takes, "
            f"among them {min(names)!r}; publish a deployment of the same model",
            tensor=min(names),
        )


def _plan(
    target: LiveTensor, reader: VersionReader, adapters: Mapping[str, _LowRankDelta]
) -> _CopyPlan:
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
    return _CopyPlan(
        target=target,
        box=box,
        is_direct=direct is not None,
        tensor=tensor,
        overlaps=found.overlaps,
        adapter=adapters.get(target.name),
    )


def _from_numpy(array: Array) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)

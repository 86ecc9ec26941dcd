"""Where tensors are read from, box by box: checkpoints and published weight versions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.canonical import Box, Slice

if TYPE_CHECKING:
    import torch

Manifests = Sequence[statemanager_pb2.VersionManifest]

BLOCK_BYTES: Final = 4 << 20
"""A version's checksums cover blocks of this many bytes."""


class TensorSource(Protocol):
    """Named tensors that can be read one box at a time."""

    def has(self, name: str) -> bool:
        """Return whether the source holds tensor `name`."""
        ...

    def read(self, box: Box) -> torch.Tensor:
        """Return the box's values; the caller copies them.

        Raises:
            PlexError: `unknown_model` when the source lacks the tensor or has it in another shape.
        """
        ...


def fill(held: Iterable[Slice], source: TensorSource, *, prefix: str = "") -> None:
    """Copy each slice's box of `prefix + name` from `source` into its memory.

    Raises:
        PlexError: as `TensorSource.read`.
    """
    for item in held:
        box = item.box
        asked = Box(
            name=prefix + box.name,
            global_shape=box.global_shape,
            start=box.start,
            size=box.size,
        )
        item.view.copy_(source.read(asked))


class SafetensorsSource:
    """The safetensors files of a directory; reads only the bytes of the boxes asked for."""

    def __init__(
        self, files: Mapping[str, Path], handles: Mapping[Path, Any], *, where: Path
    ) -> None:
        self._files = files
        self._handles = handles
        self._where = where

    def has(self, name: str) -> bool:
        """Return whether a file holds tensor `name`."""
        return name in self._files

    def read(self, box: Box) -> torch.Tensor:
        """Return one box of a tensor."""
        if box.name not in self._files:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"{self._where} holds no tensor {box.name!r}; it has {len(self._files)} others. "
                "Check that the directory is a complete checkpoint of this architecture",
                tensor=box.name,
            )
        part = self._handles[self._files[box.name]].get_slice(box.name)
        shape = tuple(part.get_shape())
        if shape != box.global_shape:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"{self._where}: tensor {box.name!r} has shape {shape}; the model has "
                f"{box.global_shape}. Check config.json against the weights",
                tensor=box.name,
            )
        index = tuple(slice(at, at + size) for at, size in zip(box.start, box.size, strict=True))
        found: torch.Tensor = part[index]
        return found


@contextlib.contextmanager
def open_checkpoint(
    directory: Path, *, pattern: str = "model*.safetensors"
) -> Iterator[TensorSource]:
    """Open the safetensors files of `directory` that match `pattern`.

    Raises:
        PlexError: `unknown_model` when there are none, or one cannot be read.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - imported after the fork

    paths = sorted(directory.glob(pattern))
    if not paths:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"{directory} holds no {pattern}; give the path of a Hugging Face directory with "
            "safetensors weights on the cluster's file system",
            path=directory,
        )
    with contextlib.ExitStack() as stack:
        try:
            handles = {path: stack.enter_context(safe_open(path, "pt")) for path in paths}
        except (OSError, SafetensorError) as error:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL, f"cannot read the weights in {directory}: {error}"
            ) from error
        files = {name: path for path, handle in handles.items() for name in handle.keys()}  # noqa: SIM118 - a safetensors handle does not iterate
        yield SafetensorsSource(files, handles, where=directory)


def read_scalars(directory: Path) -> dict[str, int | float | str]:
    """Return the scalars saved beside the optimizer state of `directory`.

    Raises:
        PlexError: `unknown_model` when the file is missing or is not a JSON object.
    """
    path = directory / "plex_state.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"cannot read {path}: {error}; save with optimizer=True, or load with optimizer=False",
            path=path,
        ) from error
    scalars = found.get("scalars", found) if isinstance(found, dict) else {}
    return {name: value for name, value in scalars.items() if isinstance(value, int | float | str)}


class VersionSource:
    """A published weight version over mapped memory of one or more nodes.

    Parameters go by their name, tensors of the optimizer in a complete copy by `kind/name`.
    """

    def __init__(self, manifests: Manifests, memory: Sequence[memoryview]) -> None:
        self._parts: dict[str, list[tuple[statemanager_pb2.CanonicalPiece, memoryview]]] = {}
        for manifest, view in zip(manifests, memory, strict=True):
            for piece in manifest.pieces:
                name = piece.name if piece.kind == "param" else f"{piece.kind}/{piece.name}"
                self._parts.setdefault(name, []).append((piece, view))

    def has(self, name: str) -> bool:
        """Return whether the version holds tensor `name`."""
        return name in self._parts

    def read(self, box: Box) -> torch.Tensor:
        """Return one box, assembled from the pieces that cover it."""
        import torch  # noqa: PLC0415 - keeps this module importable without it

        parts = self._parts.get(box.name, [])
        if not parts or tuple(parts[0][0].global_shape) != box.global_shape:
            found = tuple(parts[0][0].global_shape) if parts else "nothing"
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"the weight version has {found} as {box.name!r}; the model needs "
                f"{box.global_shape}. Pull from a deployment of the same model",
                tensor=box.name,
            )
        out = torch.empty(box.size, dtype=_torch_dtype(parts[0][0].dtype))
        covered = torch.zeros(box.size, dtype=torch.bool)
        for piece, memory in parts:
            _copy_overlap(box, piece, memory, into=out, covered=covered)
        if not bool(covered.all()):
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"the weight version covers only part of {box.name!r} {box.start}+{box.size}",
                tensor=box.name,
            )
        return out


def needed(manifests: Manifests, *, node_id: str) -> Manifests:
    """Return the manifests to read a version from: this node's, and others' that add pieces."""
    here = [m for m in manifests if m.node_id in ("", node_id)]
    far = [m for m in manifests if m not in here]
    held = {_box_key(piece) for manifest in here for piece in manifest.pieces}
    return [*here, *(m for m in far if not held.issuperset(map(_box_key, m.pieces)))]


def verify_blocks(manifest: statemanager_pb2.VersionManifest, memory: memoryview) -> None:
    """Compare the version's bytes with its xxh3-128 block checksums.

    Raises:
        PlexError: `checksum_mismatch`, naming the block.
    """
    import xxhash  # noqa: PLC0415 - only pulls need it

    for block, expected in enumerate(manifest.block_checksums):
        low = block * BLOCK_BYTES
        data = memory[low : min(low + BLOCK_BYTES, manifest.nbytes)]
        if xxhash.xxh3_128_digest(data) != expected:
            raise PlexError(
                ErrorCode.CHECKSUM_MISMATCH,
                f"block {block} of version {manifest.version} of {manifest.deployment_id} is not "
                "what was published; publish again",
                version=manifest.version,
                block=block,
            )


def _box_key(piece: statemanager_pb2.CanonicalPiece) -> tuple[object, ...]:
    return piece.kind, piece.name, tuple(piece.start), tuple(piece.size)


def _copy_overlap(
    box: Box,
    piece: statemanager_pb2.CanonicalPiece,
    memory: memoryview,
    *,
    into: torch.Tensor,
    covered: torch.Tensor,
) -> None:
    low = [max(a, b) for a, b in zip(box.start, piece.start, strict=True)]
    high = [
        min(a + n, b + m)
        for a, n, b, m in zip(box.start, box.size, piece.start, piece.size, strict=True)
    ]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return
    target = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, box.start, strict=True))
    origin = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, piece.start, strict=True))
    into[target] = _piece_view(piece, memory)[origin]
    covered[target] = True


def _piece_view(piece: statemanager_pb2.CanonicalPiece, memory: memoryview) -> torch.Tensor:
    import torch  # noqa: PLC0415 - keeps this module importable without it

    dtype = _torch_dtype(piece.dtype)
    span = sum((n - 1) * step for n, step in zip(piece.size, piece.stride, strict=True)) + 1
    low = piece.offset
    copied = bytearray(memory[low : low + span * dtype.itemsize])
    flat = torch.frombuffer(copied, dtype=dtype)
    return flat.as_strided(tuple(piece.size), tuple(piece.stride))


def _torch_dtype(name: str) -> Any:  # noqa: ANN401 - torch is untyped here
    import torch  # noqa: PLC0415 - keeps this module importable without it

    return {
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F64": torch.float64,
    }[name]

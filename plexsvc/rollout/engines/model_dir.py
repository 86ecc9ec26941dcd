"""Facts of a Hugging Face model directory, read without any framework."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexclient.wire.v1.statemanager_pb2 import VersionManifest
from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.families import MAX_CONFIG_BYTES
from plexsvc.weights import headers
from plexsvc.weights.boxes import Box
from plexsvc.weights.pieces import packed_strides
from plexsvc.weights.reading import PARAMETERS, OpenedPart

DEFAULT_POSITIONS: Final = 2048
"""Longest sequence of a model whose configuration does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A tensor of the checkpoint."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDir:
    """A checkpoint directory."""

    path: Path
    architectures: tuple[str, ...]
    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    tensors: Mapping[str, TensorFacts]
    tokenizer: Path | None


def read_model_dir(path: Path) -> ModelDir:
    """Return the facts of the checkpoint at `path`.

    Raises:
        PlexError: `unknown_model`, saying what is missing.
    """
    config = _json(path / "config.json")
    generation = path / "generation_config.json"
    stops = _json(generation) if generation.exists() else {}
    files = _files(path)
    if not files or "vocab_size" not in config:
        found = "no *.safetensors" if not files else "no vocab_size in config.json"
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL, f"{path} has {found}; give a Hugging Face model directory"
        )
    tensors: dict[str, TensorFacts] = {}
    for file in files:
        tensors |= _tensors(file)
    tokenizer = path / "tokenizer.json"
    return ModelDir(
        path=path,
        architectures=tuple(config.get("architectures") or ()),
        vocab_size=int(config["vocab_size"]),
        max_positions=int(config.get("max_position_embeddings", DEFAULT_POSITIONS)),
        eos_token_ids=_ids(stops.get("eos_token_id", config.get("eos_token_id"))),
        tensors=tensors,
        tokenizer=tokenizer if tokenizer.exists() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(paths.read_json(path, most_bytes=MAX_CONFIG_BYTES))
    except (OSError, ValueError, TypeError) as error:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"cannot read {path}: {error}; give a Hugging Face model directory",
        ) from error


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def opened(model: ModelDir) -> list[OpenedPart]:
    """Return the checkpoint's tensors as a version that is opened: mapped, nothing is read."""
    return [_opened(file) for file in _files(model.path)]


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def _opened(file: Path) -> OpenedPart:
    start, header = _header(file)
    with file.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    manifest = VersionManifest(nbytes=len(mapped))
    for name, tensor in header.items():
        box = Box.whole(tensor.shape)
        manifest.pieces.add(
            kind=PARAMETERS,
            name=name,
            global_shape=box.size,
            start=box.start,
            size=box.size,
            dtype=tensor.dtype,
            offset=start + tensor.low,
            stride=packed_strides(box),
        )
    return OpenedPart(manifest=manifest, data=memoryview(mapped))


def _tensors(file: Path) -> dict[str, TensorFacts]:
    _, header = _header(file)
    return {
        name: TensorFacts(dtype=tensor.dtype, shape=tensor.shape) for name, tensor in header.items()
    }


def _header(file: Path) -> tuple[int, dict[str, headers.StoredTensor]]:
    """Return where the tensors begin in a safetensors file, and what it says of each."""
    try:
        with file.open("rb") as stream:
            return headers.read_header(stream.fileno(), name=str(file))
    except (OSError, ValueError) as error:
        raise PlexError(ErrorCode.UNKNOWN_MODEL, str(error)) from error

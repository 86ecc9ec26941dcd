"""Facts of a Hugging Face model directory, read without any framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexsvc.errors import ErrorCode, PlexError

MAX_HEADER_BYTES: Final = 100 << 20
"""Largest safetensors header that is read: the format's own limit."""

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
    files = sorted(path.glob("*.safetensors"))
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
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"cannot read {path}: {error}; give a Hugging Face model directory",
        ) from error


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _tensors(file: Path) -> dict[str, TensorFacts]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL, f"{file} is not a safetensors file: header {length} bytes"
            )
        header = json.loads(stream.read(length))
    return {
        name: TensorFacts(dtype=entry["dtype"], shape=tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }

"""Headers of safetensors files: read within bounds, and compared with a model's configuration.

`python -m plexsvc.weights.headers MEMORY_BYTES` checks the weights that its standard input names,
with so much memory and little time: whoever made a file made its header.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from plexsvc import paths
from plexsvc.errors import PlexError
from plexsvc.paths import CheckedPath
from plexsvc.weights.dtypes import DTYPES

SIZE_BYTES: Final = 8
"""A safetensors file begins with the size of its header."""

MAX_HEADER_BYTES: Final = 100 << 20
"""Largest header that is read: the format's own limit."""

MAX_INDEX_BYTES: Final = 32 << 20
INDEX: Final = "model.safetensors.index.json"

QUICK_BYTES: Final = 256 << 10
"""Headers and index of a model that are read where they are asked for; more in a process."""

CHECK_S: Final = 25.0
"""How long that process may take, less than a look at a model (`router/looks.py`)."""
CHECK_CPU_S: Final = 10
CHECK_MEMORY_BYTES: Final = 1 << 30

_MAX_DIMENSIONS: Final = 16
_MAX_TEXT: Final = 2048
_LAYER: Final = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_ITEM_BYTES: Final = {name: dtype.carrier.itemsize for name, dtype in DTYPES.items()} | {
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "U32": 4,
    "U64": 8,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, as its header says."""

    dtype: str
    shape: tuple[int, ...]
    low: int
    high: int
    """Where its bytes begin and end, from the end of the header."""


def read_header(file: int, *, name: str) -> tuple[int, dict[str, StoredTensor]]:
    """Return where the tensors of an open file begin, and what its header says of each.

    Raises:
        ValueError: it is no safetensors file, or not all of one.
    """
    whole = os.fstat(file).st_size
    nbytes = header_bytes(file, name=name)
    try:
        table = json.loads(os.pread(file, nbytes, SIZE_BYTES))
    except RecursionError as error:
        raise ValueError(f"the header of {name} is nested too deep") from error
    except ValueError as error:
        raise ValueError(f"the header of {name} is not JSON: {error}") from error
    if not isinstance(table, dict):
        text = f"the header of {name} is a {type(table).__name__}, no object"
        raise ValueError(text)  # noqa: TRY004 - what a file holds is no type of ours
    table.pop("__metadata__", None)
    found = {
        tensor: _tensor(entry, f"{tensor[:128]!r} in {name}") for tensor, entry in table.items()
    }
    end = 0
    # The format has neither gaps nor overlaps: bytes would hide in them.
    for tensor, known in sorted(found.items(), key=lambda one: (one[1].low, one[1].high)):
        if known.low != end:
            raise ValueError(f"tensor {tensor[:128]!r} in {name} does not begin where one ends")
        end = known.high
    if SIZE_BYTES + nbytes + end != whole:
        text = f"{name} has {whole} bytes where its header describes {SIZE_BYTES + nbytes + end}"
        raise ValueError(f"{text}: it was cut short, or is no safetensors file")
    return SIZE_BYTES + nbytes, found


def header_bytes(file: int, *, name: str) -> int:
    """Return the size that a file says its header has.

    Raises:
        ValueError: the file cannot hold it.
    """
    whole = os.fstat(file).st_size
    nbytes = int.from_bytes(os.pread(file, SIZE_BYTES, 0), "little")
    if not 1 < nbytes <= min(whole - SIZE_BYTES, MAX_HEADER_BYTES):
        raise ValueError(f"{name} of {whole} bytes is no safetensors file: header {nbytes} bytes")
    return nbytes


def _tensor(entry: Any, what: str) -> StoredTensor:
    try:
        dtype, shape, (low, high) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"tensor {what} has no dtype, shape or data_offsets") from error
    numbers = [low, high, *shape] if isinstance(shape, list) else [None]
    is_plain = all(type(one) is int and 0 <= one < 1 << 62 for one in numbers)
    if not is_plain or low > high or len(shape) > _MAX_DIMENSIONS or not isinstance(dtype, str):
        raise ValueError(f"tensor {what} has no dtype, shape or data_offsets that could be")
    size = _ITEM_BYTES.get(dtype)
    if size is not None and prod(shape) * size != high - low:
        raise ValueError(f"tensor {what} of {dtype} {shape} lies in {high - low} bytes")
    return StoredTensor(dtype, tuple(shape), low, high)


def check_weights(place: CheckedPath, names: list[str], config: Mapping[str, Any]) -> str:
    """Return what is wrong with the weights of a model directory, or nothing.

    `names` are its safetensors files. Reads headers and the index only; what takes long does so in
    another process.
    """
    if _asked_bytes(place, names) <= QUICK_BYTES:
        return _problem(place, names, config)
    asked = {
        "path": str(place.path),
        "root": str(place.root),
        "names": names,
        "config": dict(config),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "plexsvc.weights.headers", str(CHECK_MEMORY_BYTES)],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its weights could not be looked at in {CHECK_S:g} s"
    if done.returncode:
        return "its headers could not be read within bounds of memory and time"
    return done.stdout.decode()


def _asked_bytes(place: CheckedPath, names: list[str]) -> int:
    """Return how much is to be parsed, as far as that can be told."""
    total = 0
    for name in names:
        file = paths.open_file(CheckedPath(path=place.path / name, root=place.root))
        try:
            total += header_bytes(file, name=name)
        except ValueError:
            continue
        finally:
            os.close(file)
    try:
        file = paths.open_file(CheckedPath(path=place.path / INDEX, root=place.root))
    except PlexError:
        return total
    total += os.fstat(file).st_size
    os.close(file)
    return total


def _problem(place: CheckedPath, names: list[str], config: Mapping[str, Any]) -> str:
    known: dict[str, StoredTensor] = {}
    held: dict[str, str] = {}
    try:
        for name in names:
            file = paths.open_file(CheckedPath(path=place.path / name, root=place.root))
            try:
                _, found = read_header(file, name=name)
            finally:
                os.close(file)
            if twice := known.keys() & found.keys():
                return f"{name} has {min(twice)[:128]!r}, which another file has, too"
            known |= found
            held |= dict.fromkeys(found, name)
        _check_index(place, held)
        _check_shapes(known, config)
    except ValueError as error:
        return str(error)[:_MAX_TEXT]
    return ""


def _check_index(place: CheckedPath, held: Mapping[str, str]) -> None:
    """Refuse an index that names what is not there."""
    try:
        file = paths.open_file(CheckedPath(path=place.path / INDEX, root=place.root))
    except PlexError:
        return
    os.close(file)
    with paths.opened_directory(place) as directory:
        index = paths.read_json(directory / INDEX, most_bytes=MAX_INDEX_BYTES)
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"{INDEX} has no weight_map")  # noqa: TRY004 - as above
    for tensor, name in table.items():
        if held.get(tensor) != name:
            raise ValueError(
                f"{INDEX} says that {tensor[:128]!r} is in {str(name)[:128]!r}, and it is not there"
            )


def _check_shapes(known: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Refuse tensors that cannot be those of the configuration."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    size = config.get("head_dim") or (hidden // heads if hidden and heads else None)
    groups = config.get("num_key_value_heads") or heads
    wanted = {
        r"model\.embed_tokens\.weight|lm_head\.weight": (config.get("vocab_size"), hidden),
        r"model\.norm\.weight": (hidden,),
        r"model\.layers\.\d+\.self_attn\.q_proj\.weight": (heads and size and heads * size, hidden),
        r"model\.layers\.\d+\.self_attn\.[kv]_proj\.weight": (
            groups and size and groups * size,
            hidden,
        ),
        r"model\.layers\.\d+\.mlp\.(?:gate|up)_proj\.weight": (
            config.get("intermediate_size"),
            hidden,
        ),
        r"model\.layers\.\d+\.mlp\.experts\.\d+\.(?:gate|up)_proj\.weight": (
            config.get("moe_intermediate_size"),
            hidden,
        ),
    }
    patterns = [(re.compile(pattern), shape) for pattern, shape in wanted.items() if all(shape)]
    for name, tensor in known.items():
        for pattern, shape in patterns:
            if pattern.fullmatch(name) and tensor.shape != shape:
                raise ValueError(
                    f"tensor {name[:128]!r} has shape {tensor.shape}; config.json makes it {shape}"
                )
    layers = {
        int(found[1]) for name in known if (found := _LAYER.match(name)) and len(found[1]) < 9
    }
    count = config.get("num_hidden_layers")
    if layers and count and layers != set(range(count)):
        raise ValueError(
            f"the weights hold {len(layers)} layers up to number {max(layers)}; config.json has "
            f"{count}"
        )


def _main(memory_bytes: int) -> str:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.nice(5)  # others first; with 19 a second of work took minutes on a busy machine
    resource.setrlimit(resource.RLIMIT_CPU, (CHECK_CPU_S, CHECK_CPU_S))
    asked = json.load(sys.stdin)
    place = CheckedPath(path=Path(asked["path"]), root=Path(asked["root"]))
    try:
        return _problem(place, asked["names"], asked["config"])
    except PlexError as error:
        return error.message


if __name__ == "__main__":
    sys.stdout.write(_main(int(sys.argv[1])))

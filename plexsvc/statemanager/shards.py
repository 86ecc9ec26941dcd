"""Safetensors files of a checkpoint: who writes which tensors, and how.

Each tensor has one writer over all nodes: one that holds all of it, else one that holds a piece and
fetches the others. Whoever writes least gets the next.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, Shard
from plexsvc import lora
from plexsvc.errors import bad_request
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.snapshot import StateSnapshot
from plexsvc.weights import headers, object_store, pieces
from plexsvc.weights.boxes import Box, cover
from plexsvc.weights.checkpoints import MODEL_FILE, OPTIMIZER_FILE, BlockHasher, Sealed
from plexsvc.weights.pieces import Tensor
from plexsvc.weights.reading import PARAMETERS, key_of

SYNC_BYTES: Final = 64 << 20
"""Bytes that may be written before the disk must have them."""

OPTIMIZER_KINDS: Final = ("exp_avg", "exp_avg_sq", "master")

Plan = Mapping[str, Sequence[Shard]]
"""What to write, by the region (of a copy: the number of its holder) from which it is read."""


def plan(snapshot: StateSnapshot, *, optimizer: bool) -> Plan:
    """Return who writes which files.

    Raises:
        PlexError: `bad_request` for state of which only a part is given, or none.
    """
    found = pieces.tensors(snapshot.index)
    weights = [tensor for tensor in found if tensor.kind == PARAMETERS]
    states = [tensor for tensor in found if tensor.kind in OPTIMIZER_KINDS and optimizer]
    _check_whole(weights)
    if optimizer:
        _check_whole(states)
    dealt = deal(snapshot.index, [*weights, *states])
    if lora.is_adapter(snapshot.index):  # a PEFT directory has one file
        dealt = {min(dealt): [*weights, *states]}
    planned: dict[str, list[Shard]] = {region: [] for region in dealt}
    weights_file = lora.WEIGHTS_FILE if lora.is_adapter(snapshot.index) else MODEL_FILE
    for file, kinds in ((weights_file, (PARAMETERS,)), (OPTIMIZER_FILE, OPTIMIZER_KINDS)):
        named = {
            region: names
            for region, tensors in dealt.items()
            if (names := [key_of(tensor) for tensor in tensors if tensor.kind in kinds])
        }
        for number, (region, names) in enumerate(named.items(), start=1):
            shard = file
            if len(named) > 1:
                shard = file.replace(".", f"-{number:05d}-of-{len(named):05d}.")
            planned[region].append(Shard(file=shard, tensors=names))
    return planned


def deal(index: Iterable[CanonicalPiece], tensors: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Return by region what is read from there; a tensor that is in several goes where least is.

    Neighbours stay together, so that what is fetched lies together.
    """
    boxes: dict[tuple[str, str], dict[str, list[Box]]] = {}
    for piece in index:
        held = boxes.setdefault((piece.kind, piece.name), {})
        held.setdefault(piece.region, []).append(pieces.box_of(piece))
    holders = [_holders(tensor, boxes[tensor.kind, tensor.name]) for tensor in tensors]
    loads = Counter({region: 0 for some in holders for region in some})
    for tensor, some in zip(tensors, holders, strict=True):
        if len(some) == 1:
            loads[some[0]] += tensor.nbytes
    fair = sum(tensor.nbytes for tensor in tensors) / max(1, len(loads))
    dealt: dict[str, list[Tensor]] = {region: [] for region in sorted(loads)}
    last = ""
    for tensor, some in zip(tensors, holders, strict=True):
        to = some[0]
        if len(some) > 1:
            if last not in some or loads[last] >= fair:
                last = min(some, key=lambda region: loads[region])
            to = last
            loads[to] += tensor.nbytes
        dealt[to].append(tensor)
    return {region: given for region, given in dealt.items() if given}


def _holders(tensor: Tensor, held: Mapping[str, list[Box]]) -> list[str]:
    """Return the regions that have all of a tensor, or if none has, some of it."""
    if len(held) == 1:
        return list(held)
    whole = Box.whole(tensor.shape)
    return [region for region, found in held.items() if not cover(whole, found).missing] or [*held]


def index_of(shards: Iterable[Shard], *, nbytes: int) -> dict[str, Any]:
    """Return what Hugging Face's index says of the weights in several files."""
    table = {name: shard.file for shard in shards for name in shard.tensors}
    return {"metadata": {"total_size": nbytes}, "weight_map": dict(sorted(table.items()))}


def write(
    snapshot: StateSnapshot, directory: Path | str, shards: Iterable[Shard], caller: WaitingCaller
) -> dict[str, Sealed]:
    """Write files that are there, empty, or objects below a URL; return their seals.

    Raises:
        PlexError: `cancelled`; of what others hold, as `StateSnapshot.gathered`; as
            `object_store.reached`.
        OSError: the disk refuses.
    """
    known = {key_of(tensor): tensor for tensor in pieces.tensors(snapshot.index)}
    sealed = dict[str, Sealed]()
    if isinstance(directory, str):
        for one in shards:
            with (
                object_store.reached(f"{directory}/{one.file}") as (fs, path),
                fs.open(path, "wb") as file,
            ):
                tensors = [known[name] for name in one.tensors]
                sealed[one.file] = _write_safetensors(file, tensors, snapshot, caller)
        return sealed
    with ExitStack() as stack:
        # Whoever makes the checkpoint made the files, and may remove them while they are written.
        files = [(stack.enter_context(_opened(directory / one.file)), one) for one in shards]
        for file, one in files:
            tensors = [known[name] for name in one.tensors]
            sealed[one.file] = _write_safetensors(file, tensors, snapshot, caller)
    return sealed


def _opened(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "wb")


def _write_safetensors(
    file: IO[bytes], tensors: Sequence[Tensor], snapshot: StateSnapshot, caller: WaitingCaller
) -> Sealed:
    """Write tensors one at a time: never more than a few are assembled in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[key_of(tensor)] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    hasher = BlockHasher()
    for data in _contents(text, tensors, snapshot):
        hasher.update(data)
        _write_steadily(file, data, caller)
    if isinstance(file, FileIO):
        os.fsync(file.fileno())
    return hasher.seal()


def _contents(
    header: bytes, tensors: Sequence[Tensor], snapshot: StateSnapshot
) -> Iterator[memoryview]:
    yield memoryview(len(header).to_bytes(headers.SIZE_BYTES, "little") + header)
    for tensor in snapshot.gathered(tensors):
        whole = np.ascontiguousarray(pieces.whole(tensor, snapshot.region))
        yield whole.reshape(-1).view(np.uint8).data


def _write_steadily(file: IO[bytes], data: memoryview, caller: WaitingCaller) -> None:
    """Write and sync in steps, so that the watchdog sees how far it is on the disk."""
    while data:
        done = file.write(data[:SYNC_BYTES])
        data = data[done:]
        if data and isinstance(file, FileIO):
            os.fdatasync(file.fileno())
        caller.advance(done)


def _check_whole(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if not pieces.is_complete(tensor):
            raise bad_request(
                f"{tensor.kind}/{tensor.name}: only a part of it is here; of a deployment that "
                "spans nodes, give the copies of all"
            )
    if not tensors:
        raise bad_request(
            "nothing to write: the deployment has no such state; one without an optimizer saves "
            "with optimizer=False"
        )

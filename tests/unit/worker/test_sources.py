"""Reading boxes of checkpoints and of published versions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker import sources
from plexsvc.worker.canonical import Box, Run, Slice, piece, slices

SHAPE = (6, 5)
VALUES = torch.arange(30, dtype=torch.float32).reshape(SHAPE)


def box(start: tuple[int, ...], size: tuple[int, ...], name: str = "w") -> Box:
    return Box(name=name, global_shape=SHAPE, start=start, size=size)


def version(cuts: list[int]) -> sources.VersionSource:
    """Return a version of `VALUES` that ranks hold in row bands ending at `cuts`."""
    bounds = sorted({0, *cuts, 6})
    memory = torch.zeros(4096, dtype=torch.uint8)
    pieces, offset = [], 0
    for rank, (low, high) in enumerate(pairwise(bounds)):
        count = (high - low) * 5
        view = memory[offset : offset + 4 * count].view(torch.float32).view(high - low, 5)
        view.copy_(VALUES[low:high])
        run = Run(row=0, num_rows=high - low, name="w", global_shape=SHAPE, hf_row=low)
        (held,) = slices(view, [run])
        pieces.append(piece("param", held, region="params", base=memory, rank=rank))
        offset += 4 * count
    manifest = statemanager_pb2.VersionManifest(pieces=pieces, nbytes=4096)
    return sources.VersionSource([manifest], [memoryview(memory.numpy())])


@given(
    cuts=st.lists(st.integers(1, 5), max_size=3),
    low=st.tuples(st.integers(0, 5), st.integers(0, 4)),
    size=st.tuples(st.integers(1, 6), st.integers(1, 5)),
)
@settings(max_examples=60, deadline=None)
def test_any_box_is_assembled_from_any_cut(
    cuts: list[int], low: tuple[int, int], size: tuple[int, int]
) -> None:
    size = (min(size[0], 6 - low[0]), min(size[1], 5 - low[1]))
    found = version(cuts).read(box(low, size))
    assert torch.equal(found, VALUES[low[0] : low[0] + size[0], low[1] : low[1] + size[1]])


def test_a_version_with_a_hole_is_refused() -> None:
    source = version([3])
    source._parts["w"].pop()
    with pytest.raises(PlexError, match="covers only part"):
        source.read(box((0, 0), SHAPE))


def test_a_version_of_another_model_is_refused() -> None:
    wrong = Box(name="w", global_shape=(6, 6), start=(0, 0), size=(1, 1))
    for asked in (wrong, box((0, 0), (1, 1), name="other")):
        with pytest.raises(PlexError) as caught:
            version([]).read(asked)
        assert caught.value.code == ErrorCode.UNKNOWN_MODEL


def test_every_block_of_a_version_is_verified() -> None:
    data = np.random.default_rng(0).integers(0, 256, sources.BLOCK_BYTES + 10, dtype=np.uint8)
    blocks = (data[: sources.BLOCK_BYTES], data[sources.BLOCK_BYTES :])
    manifest = statemanager_pb2.VersionManifest(
        nbytes=data.size, block_checksums=[xxhash.xxh3_128_digest(b.tobytes()) for b in blocks]
    )
    sources.verify_blocks(manifest, memoryview(data))
    data[-1] ^= 1
    with pytest.raises(PlexError) as caught:
        sources.verify_blocks(manifest, memoryview(data))
    assert caught.value.code == ErrorCode.CHECKSUM_MISMATCH
    assert caught.value.facts["block"] == "1"


def test_a_checkpoint_fills_memory_box_by_box(tmp_path: Path) -> None:
    save_file({"w": VALUES}, tmp_path / "model-00001.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-00002.safetensors")
    target = torch.zeros(2, 2)
    with sources.open_checkpoint(tmp_path) as source:
        assert source.has("w")
        assert source.has("b")
        assert not source.has("c")
        sources.fill([Slice(box=box((1, 2), (2, 2)), view=target)], source)
    assert torch.equal(target, VALUES[1:3, 2:4])


@pytest.mark.parametrize(
    "asked",
    [
        Box(name="missing", global_shape=SHAPE, start=(0, 0), size=SHAPE),
        Box(name="w", global_shape=(5, 6), start=(0, 0), size=(5, 6)),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_tensor(tmp_path: Path, asked: Box) -> None:
    save_file({"w": VALUES}, tmp_path / "model.safetensors")
    with sources.open_checkpoint(tmp_path) as source, pytest.raises(PlexError) as caught:
        source.read(asked)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL
    assert caught.value.facts["tensor"] == asked.name


def test_missing_and_broken_files_are_unknown_models(tmp_path: Path) -> None:
    for content in (None, b"not safetensors"):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(PlexError) as caught, sources.open_checkpoint(tmp_path):
            pass
        assert caught.value.code == ErrorCode.UNKNOWN_MODEL
        assert str(tmp_path) in caught.value.message
    with pytest.raises(PlexError, match=r"optimizer=False"):
        sources.read_scalars(tmp_path)


def test_saved_scalars_are_read_back(tmp_path: Path) -> None:
    table = {"applied_seq": 9, "scalars": {"adam_step": 3, "nested": {}}}
    (tmp_path / "plex_state.json").write_text(json.dumps(table))
    assert sources.read_scalars(tmp_path) == {"adam_step": 3}


def test_a_version_is_read_from_other_nodes_only_for_what_is_not_here() -> None:
    def manifest(node_id: str, *starts: int) -> statemanager_pb2.VersionManifest:
        parts = [
            statemanager_pb2.CanonicalPiece(kind="param", name="w", start=[low, 0], size=[2, 5])
            for low in starts
        ]
        return statemanager_pb2.VersionManifest(node_id=node_id, pieces=parts)

    here, copy, rest = manifest("here", 0), manifest("copy", 0), manifest("rest", 2, 4)
    assert sources.needed([copy, here, rest], node_id="here") == [here, rest]
    assert sources.needed([copy], node_id="here") == [copy]
    assert sources.needed([], node_id="here") == []

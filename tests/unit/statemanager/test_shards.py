"""Each tensor of a save has one writer, and nodes write about as much as each other."""

from __future__ import annotations

import numpy as np
import pytest

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc import lora
from plexsvc.errors import PlexError
from plexsvc.statemanager import shards
from plexsvc.statemanager.snapshot import StateSnapshot

ROWS = 8


def piece(
    name: str, node: str, *, kind: str = "param", low: int = 0, high: int = ROWS
) -> CanonicalPiece:
    return CanonicalPiece(
        kind=kind,
        name=name,
        global_shape=[ROWS, 4],
        start=[low, 0],
        size=[high - low, 4],
        stride=[4, 1],
        dtype="F32",
        region=node,
    )


def planned(*index: CanonicalPiece, optimizer: bool = False) -> dict[str, dict[str, list[str]]]:
    """Return what each node writes, by file."""
    state = StateSnapshot(
        index=index, region=lambda *_: np.zeros(0, np.uint8), scalars={}, applied_seq=0
    )
    found = shards.plan(state, optimizer=optimizer)
    return {
        node: {shard.file: list(shard.tensors) for shard in some} for node, some in found.items()
    }


def test_what_one_node_has_alone_it_writes_and_the_rest_evens_out() -> None:
    mine = [piece(name, "0") for name in ("a", "b", "c")]
    both = [piece(name, node) for name in ("d", "e", "f", "g", "h") for node in ("0", "1")]
    assert planned(*mine, *both) == {
        "0": {"model-00001-of-00002.safetensors": ["a", "b", "c", "h"]},
        "1": {"model-00002-of-00002.safetensors": ["d", "e", "f", "g"]},
    }


def test_a_node_that_has_all_of_a_tensor_goes_before_those_that_have_a_part() -> None:
    halves = [piece("a", "0", high=4), piece("a", "1", low=4), piece("a", "2")]
    assert planned(*halves) == {"2": {"model.safetensors": ["a"]}}
    split = [piece(n, "0", high=4) for n in "ab"] + [piece(n, "1", low=4) for n in "ab"]
    assert [list(files.values()) for files in planned(*split).values()] == [[["a"]], [["b"]]]


def test_one_node_writes_one_file_of_each_sort() -> None:
    state = [piece("a", "0"), piece("a", "0", kind="exp_avg")]
    assert planned(*state, optimizer=True) == {
        "0": {"model.safetensors": ["a"], "optimizer.safetensors": ["exp_avg/a"]}
    }
    assert planned(*state) == {"0": {"model.safetensors": ["a"]}}


def test_adapters_have_one_file_on_however_many_nodes() -> None:
    both = [piece("a", "0"), piece("b", "1"), piece("scale", "1", kind=lora.SCALE_KIND)]
    assert planned(*both) == {"0": {lora.WEIGHTS_FILE: ["a", "b"]}}


def test_state_of_which_a_part_is_missing_is_not_dealt() -> None:
    with pytest.raises(PlexError, match="only a part of it is here"):
        planned(piece("a", "0", high=4))
    with pytest.raises(PlexError, match="nothing to write"):
        planned(piece("a", "0"), optimizer=True)

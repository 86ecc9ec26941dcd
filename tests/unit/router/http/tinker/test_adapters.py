"""Adapters by `LoraConfig`: what is read, kept, told and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.http.tinker import adapters
from plexsvc.router.http.tinker.adapters import ATTENTION, MLP, Adapter


@pytest.mark.parametrize(
    ("asked", "targets"),
    [
        ({}, ()),
        ({"train_mlp": False}, ATTENTION),
        ({"train_attn": False, "train_unembed": False}, MLP),
    ],
)
def test_a_configuration_becomes_targets_and_comes_back_from_its_record(
    asked: dict[str, bool], targets: tuple[str, ...]
) -> None:
    found = adapters.read({"rank": 8, "seed": 3, **asked})
    assert (found.to_wire().rank, found.to_wire().alpha) == (8, 32.0)
    assert tuple(found.to_wire().targets) == targets
    record = json.loads(json.dumps(adapters.kept(found)))
    assert adapters.of(record) == found
    told = adapters.told(record)
    assert (told["lora_rank"], told["train_unembed"]) == (8, asked.get("train_unembed", True))
    assert found.to_wire().unembedding == told["train_unembed"]
    del record["train_unembed"]
    assert not adapters.told(record)["train_unembed"], "one of before has none there"


def test_a_whole_model_has_none() -> None:
    assert adapters.of(adapters.kept(None)) is None
    told = adapters.told(None)
    assert (told["is_lora"], told["lora_rank"]) == (False, 0)


def test_adapters_of_other_shapes_have_other_keys() -> None:
    shapes = [
        Adapter(rank=rank, train_attn=attn, train_mlp=mlp)
        for rank in (1, 11)
        for attn, mlp in ((True, True), (True, False), (False, True))
    ]
    assert len({one.key for one in shapes}) == len(shapes)


@pytest.mark.parametrize(
    "asked",
    [
        7,
        {},
        {"rank": -1},
        {"rank": True},
        {"rank": 1 << 16},
        {"rank": 8.0},
        {"rank": 8, "train_attn": False, "train_mlp": False},
    ],
    ids=str,
)
def test_what_no_adapter_can_be_is_refused(asked: Any) -> None:
    with pytest.raises(PlexError, match="lora_config") as caught:
        adapters.read(asked)
    assert caught.value.code == ErrorCode.BAD_REQUEST

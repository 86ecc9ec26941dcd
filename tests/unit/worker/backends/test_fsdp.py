"""What the fsdp backend refuses rather than compute it wrong."""

from __future__ import annotations

import pytest
import torch

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.backends import fsdp
from plexsvc.worker.backends.base import MicroBatch


def test_a_batch_is_moved_to_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "_device", lambda: torch.device("meta"))
    tokens = torch.zeros(3, dtype=torch.int64)
    moved = fsdp._on_device(
        MicroBatch(
            tokens=tokens,
            cu_seqlens=torch.tensor([0, 3]),
            arrays={"weights": torch.ones(3)},
            sequences=(0,),
        )
    )
    assert moved.tokens.device.type == moved.arrays["weights"].device.type == "meta"
    assert moved.cu_seqlens.device.type == "cpu", "its bounds are read on the host"


def test_a_buffer_that_nobody_computes_is_refused_by_name() -> None:
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    model.model.embed_tokens = torch.nn.Embedding(2, 2)
    model.model.rotary_emb = torch.nn.Identity()  # takes any configuration
    model.model.register_buffer("alibi", torch.ones(2), persistent=False)
    with pytest.raises(PlexError, match=r"buffers model\.alibi,") as caught:
        fsdp.materialize(model, None)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL

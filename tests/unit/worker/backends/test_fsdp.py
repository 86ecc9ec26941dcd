"""What the fsdp backend refuses rather than compute it wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.backends import fsdp

HEADS = torch.zeros(1, 2, 3, 4)


def attend(**options: Any) -> torch.Tensor:  # noqa: ANN401 - as transformers passes them
    options = {"attention_mask": None, "packed_bounds": [0, 3], "scaling": 1.0, **options}
    out, _ = fsdp.packed_attention(torch.nn.Module(), HEADS, HEADS, HEADS, **options)
    return out


@pytest.mark.parametrize(
    "options",
    [{"s_aux": HEADS}, {"dropout": 0.1}, {"attention_mask": HEADS}, {"use_alibi": True}],
    ids=lambda options: next(iter(options)),
)
def test_attention_that_is_not_computed_is_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(PlexError, match=next(iter(options))) as caught:
        attend(**options)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL


def test_what_changes_nothing_is_taken() -> None:
    taken = attend(dropout=0.0, sliding_window=None, position_ids=torch.arange(3), use_cache=False)
    assert taken.shape == (1, 3, 2, 4)


def test_a_buffer_that_nobody_computes_is_refused_by_name() -> None:
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    model.model.embed_tokens = torch.nn.Embedding(2, 2)
    model.model.rotary_emb = torch.nn.Identity()  # takes any configuration
    model.model.register_buffer("alibi", torch.ones(2), persistent=False)
    with pytest.raises(PlexError, match=r"buffers model\.alibi,") as caught:
        fsdp._materialize(model, None)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL

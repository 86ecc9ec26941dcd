"""What attention of the fsdp backend refuses rather than compute it wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.backends import fsdp_attention
from plexsvc.worker.backends.packed import packing_of

HEADS = torch.zeros(1, 2, 3, 4)
PACKING = packing_of(torch.tensor([0, 3], dtype=torch.int32), device=torch.device("cpu"))


def attend(**options: Any) -> torch.Tensor:
    options = {"attention_mask": None, "packing": PACKING, "scaling": 1.0, **options}
    out, _ = fsdp_attention.packed_attention(torch.nn.Module(), HEADS, HEADS, HEADS, **options)
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


@pytest.mark.parametrize(
    ("options", "num_calls"),
    [({}, 1), ({"sliding_window": 9}, 1), ({"sliding_window": 2}, 0), ({"softcap": 30.0}, 0)],
    ids=str,
)
def test_a_gpu_attends_all_sequences_at_once_where_its_kernel_computes_that(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], num_calls: int
) -> None:
    calls = []

    def at_once(query: torch.Tensor, *_heads: object, scale: float) -> torch.Tensor:
        calls.append((tuple(query.shape), scale))
        return query

    monkeypatch.setattr(fsdp_attention, "attends_at_once", lambda _query: True)
    monkeypatch.setattr(fsdp_attention, "attend", at_once)
    assert attend(**options).shape == (1, 3, 2, 4)
    assert calls == [((3, 2, 4), 1.0)] * num_calls

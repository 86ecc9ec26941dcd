"""Packed attention in one call against one call a sequence; logprobs in parts; sums on a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from plexsvc.worker.backends import packed
from plexsvc.worker.backends.base import LossTerms
from plexsvc.worker.backends.packed import Totals, attend, logprobs_in_parts, packing_of

CPU = torch.device("cpu")
BOUNDS = [0, 3, 4, 11]
HEADS, GROUPS, SIZE = 4, 2, 8


def one_by_one(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None) -> Tensor:
    parts = []
    for a, b in pairwise(BOUNDS):
        q, k, v = (t[a:b].transpose(0, 1)[None] for t in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def tensors(dtype: torch.dtype) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for heads in (HEADS, GROUPS, GROUPS):
        yield torch.randn(BOUNDS[-1], heads, SIZE, generator=generator).to(dtype)


def packing() -> packed.Packing:
    return packing_of(torch.tensor(BOUNDS, dtype=torch.int32), device=CPU)


def test_positions_start_anew_in_every_sequence() -> None:
    found = packing()
    assert found.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6]
    assert (found.longest, found.shortest, list(found.bounds)) == (7, 1, BOUNDS)


def test_half_precision_is_one_call_of_variable_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = tensors(torch.bfloat16)
    calls: list[dict[str, Any]] = []

    def kernel(
        *qkv_and_lengths: Any,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> Tensor:
        query, key, value, *lengths = qkv_and_lengths
        calls.append({"lengths": lengths, "window_size": window_size, "enable_gqa": enable_gqa})
        return one_by_one(query, key, value, scale=scale)

    monkeypatch.setattr(packed, "varlen_attn", kernel)
    found = attend(query, key, value, packing(), scale=0.5)
    assert torch.equal(found, one_by_one(query, key, value, scale=0.5))
    (call,) = calls
    cu_q, cu_k, longest_q, longest_k = call["lengths"]
    assert cu_q.dtype is cu_k.dtype is torch.int32
    assert (cu_q.tolist(), longest_q, longest_k) == (BOUNDS, 7, 7)
    assert (call["window_size"], call["enable_gqa"]) == ((-1, 0), True)


def test_a_kernel_that_knows_no_option_of_groups_is_asked_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, key, value = tensors(torch.bfloat16)

    def kernel(
        *qkv_and_lengths: Any,
        scale: float,
        window_size: tuple[int, int],
    ) -> Tensor:
        assert window_size == (-1, 0)
        return one_by_one(*qkv_and_lengths[:3], scale=scale)

    monkeypatch.setattr(packed, "varlen_attn", kernel)
    found = attend(query, key, value, packing(), scale=0.5)
    assert torch.equal(found, one_by_one(query, key, value, scale=0.5))


def test_single_precision_is_one_call_on_jagged_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = tensors(torch.float32)
    calls = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float) -> Tensor:
        calls.append(q.size(1))
        assert is_causal
        heads = (t.transpose(1, 2).values() for t in (q, k, v))
        out = one_by_one(*heads, scale=scale)
        return torch.nested.nested_tensor_from_jagged(out, q.offsets()).transpose(1, 2)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    found = attend(query, key, value, packing(), scale=0.5)
    monkeypatch.undo()
    torch.testing.assert_close(found, one_by_one(query, key, value, scale=0.5))
    assert calls == [HEADS], "the kernel of jagged tensors wants a key head for each query head"


def test_logprobs_in_parts_are_the_same_bits_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 4, 0, 1])
    seen: list[int] = []

    def logprobs(rows: Tensor, wanted: Tensor) -> Tensor:
        seen.append(rows.size(0))
        return torch.log_softmax(rows.float(), -1).gather(-1, wanted[:, None])[:, 0]

    whole = logprobs_in_parts(logprobs, logits, targets)
    (wanted,) = torch.autograd.grad(whole.square().sum(), logits)
    assert seen == [7]
    monkeypatch.setattr(packed, "MAX_LOGITS", 15)
    seen.clear()
    parts = logprobs_in_parts(logprobs, logits, targets)
    (found,) = torch.autograd.grad(parts.square().sum(), logits)
    assert max(seen) == 3
    assert torch.equal(parts, whole)
    assert torch.equal(found, wanted)


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_sums_of_micro_batches_are_added_in_order_in_double_and_maxima_taken(
    alone: dist.ProcessGroup,
) -> None:
    totals = Totals()
    assert totals.over(alone) == ({}, {})
    for x in (1e8, 3.0, -1e8):
        value = torch.tensor(x, requires_grad=True)
        totals.add(LossTerms(loss=value, sums={"loss": value}, maxima={"gap": value}))
    assert totals.over(alone) == ({"loss": 3.0}, {"gap": 1e8})

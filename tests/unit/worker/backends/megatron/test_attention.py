"""Megatron's attention is given what it computes, or says that it does not."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch

from plexsvc.errors import PlexError
from plexsvc.worker.backends.packed import packing_of


@pytest.fixture(scope="module")
def causal() -> dict[str, Any]:
    """What Megatron builds the attention of a decoder's layer with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron's, of what is not installed
        transformer = importlib.import_module("megatron.core.transformer.transformer_config")
        enums = importlib.import_module("megatron.core.transformer.enums")
        importlib.import_module("plexsvc.worker.backends.megatron.attention")
        config = transformer.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2)
    return {
        "config": config,
        "layer_number": 1,
        "attn_mask_type": enums.AttnMaskType.causal,
        "attention_type": "self",
    }


def build(arguments: dict[str, Any]) -> Any:
    from plexsvc.worker.backends.megatron.attention import PackedAttention

    return PackedAttention(**arguments)


def call(attention: Any, arguments: dict[str, Any]) -> Any:
    from plexsvc.worker.backends.megatron.attention import PackedParams

    params, query = PackedParams(), torch.randn(3, 2, 4)
    params.packing = packing_of(torch.tensor([0, 3]), device=torch.device("cpu"))
    return attention(query, query, query, packed_seq_params=params, **arguments)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"attention_type": "cross"}, PlexError),
        ({"attn_mask_type": None}, PlexError),
        ({"cp_comm_type": "p2p"}, PlexError),
        ({"window_size": 4}, TypeError),
    ],
)
def test_attention_of_another_kind_is_not_built(
    causal: dict[str, Any], more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        build(causal | more)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"attention_bias": torch.ones(1)}, PlexError),
        ({"attention_mask": torch.ones(1)}, PlexError),
        ({"attn_mask_type": None}, PlexError),
        ({"softcap": 30.0}, TypeError),
    ],
)
def test_a_call_that_asks_for_more_than_is_computed_is_refused(
    causal: dict[str, Any], more: dict[str, Any], error: type[Exception]
) -> None:
    attention = build(causal)
    plain = {"attn_mask_type": causal["attn_mask_type"], "attention_bias": None}
    assert call(attention, plain).shape == (3, 8)
    with pytest.raises(error):
        call(attention, plain | more)

"""Estimates of a model's state, against what transformers itself counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from plexclient.specs import Parallel
from plexsvc import sizes
from plexsvc.lora import Lora
from tests.rigs.model_families import BOTH, FSDP, config_of

CASES = {**BOTH, **FSDP}
QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN_7B_PARAMETERS = 7_615_616_512


def table_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's `config.json` with what transformers fills in."""
    table: dict[str, Any] = AutoConfig.for_model(**config_of(case)).to_dict()
    return table


@pytest.mark.parametrize("name", CASES)
def test_no_family_is_larger_than_its_estimate_nor_much_smaller(name: str) -> None:
    table = table_of(CASES[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**table))
    count = sum(each.numel() for each in model.parameters())
    found = sizes.of(table, backend="fsdp", dtype="float32", parallel=Parallel(), is_trained=False)
    assert 4 * count <= found.state == found.params <= 4 * count * 1.15


def test_a_model_of_seven_billion_is_estimated_within_one_in_a_thousand() -> None:
    found = sizes.of(
        QWEN_7B, backend="megatron", dtype="bfloat16", parallel=Parallel(), is_trained=True
    )
    assert 2 * QWEN_7B_PARAMETERS <= found.params <= 2 * QWEN_7B_PARAMETERS * 1.001
    assert 18 * QWEN_7B_PARAMETERS <= found.state <= 18 * QWEN_7B_PARAMETERS * 1.001


def test_an_optimizer_on_the_host_is_in_no_budget_of_a_device() -> None:
    found = sizes.of(
        QWEN_7B,
        backend="fsdp",
        dtype="bfloat16",
        parallel=Parallel(),
        is_trained=True,
        steps_on_host=True,
    )
    assert found.host == found.optimizer == 2 * found.params
    assert found.state == found.params + found.gradients


def test_layouts_split_as_their_backend_does() -> None:
    def state(backend: str, parallel: Parallel) -> int:
        found = sizes.of(
            QWEN_7B,
            backend=backend,
            dtype="bfloat16",
            parallel=parallel,
            is_trained=True,
        )
        return found.state

    whole = state("megatron", Parallel())
    assert state("megatron", Parallel(dp=4)) == whole, "every replica has all of it"
    shared = state("megatron", Parallel(dp=4, distributed_optimizer=True))
    assert shared == pytest.approx(whole * (2 + 4 + 12 / 4) / 18, rel=0.001)
    assert whole / 4 <= state("megatron", Parallel(tp=4)) <= whole / 4 * 1.01
    assert whole / 4 <= state("megatron", Parallel(pp=4)) <= whole / 4 * 1.3, (
        "the first has the embedding"
    )
    sharded = state("fsdp", Parallel())  # its masters are its parameters
    assert sharded == pytest.approx(whole * 16 / 18, rel=0.001)
    assert state("fsdp", Parallel(dp=8)) == pytest.approx(sharded / 8, rel=0.001)


def test_experts_are_split_over_their_own_ranks() -> None:
    table = table_of(BOTH["qwen3_moe"])

    def of(**parallel: Any) -> sizes.Sizes:
        layout = Parallel(**parallel)
        return sizes.of(
            table, backend="megatron", dtype="float32", parallel=layout, is_trained=True
        )

    experts = 4 * 4 * 4 * 3 * 32 * 24  # bytes, layers, experts, matrices
    whole, split = of(dp=2), of(dp=2, ep=2)
    assert whole.params - split.params == experts / 2
    shared = of(dp=2, ep=2, distributed_optimizer=True)
    assert shared.optimizer == (split.params - experts / 2) + experts, "dense halves, whole experts"


def test_nothing_is_said_of_a_backend_or_a_model_that_is_not_known() -> None:
    for config, backend in ((QWEN_7B, "noop"), ({"hidden_size": 8}, "fsdp")):
        found = sizes.of(config, backend=backend, dtype="", parallel=Parallel(), is_trained=True)
        assert found == sizes.Sizes()


def test_adapters_leave_the_model_without_masters_moments_and_gradients() -> None:
    adapters = Lora(rank=16, alpha=32.0)
    found = sizes.of(
        QWEN_7B,
        backend="fsdp",
        dtype="bfloat16",
        parallel=Parallel(),
        is_trained=True,
        lora=adapters,
    )
    own = 4 * adapters.elements(QWEN_7B)
    plain = sizes.of(
        QWEN_7B, backend="fsdp", dtype="bfloat16", parallel=Parallel(), is_trained=False
    )
    assert found.params == plain.params + own
    assert (found.version, found.optimizer, found.gradients) == (own, 2 * own, own)
    assert found.state < 1.05 * plain.state

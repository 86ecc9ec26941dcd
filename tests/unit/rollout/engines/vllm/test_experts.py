"""Experts on a CPU compute what their weights say, or say that they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import plexsvc.rollout.engines
from plexsvc.errors import ErrorCode, PlexError


@pytest.fixture(scope="module")
def experts() -> ModuleType:
    """The module alone: its package imports vLLM, which it needs only to take a kernel's place."""
    path = Path(plexsvc.rollout.engines.__path__[0]) / "vllm" / "experts.py"
    spec = importlib.util.spec_from_file_location("experts_alone", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compute(experts: ModuleType, **more: Any) -> torch.Tensor:
    """Give two tokens to one expert each, whose weights are ones times the expert's number."""
    output = torch.full((2, 3), 7.0)
    owner = SimpleNamespace(w1_bias=None, w2_bias=more.pop("w2_bias", None))
    scales = torch.tensor([1.0, 2.0])[:, None, None]
    arguments = {
        "output": output,
        "hidden_states": torch.ones(2, 3),
        "w1": torch.ones(2, 8, 3) * scales,
        "w2": torch.ones(2, 3, 4) * scales,
        "topk_weights": torch.tensor([[1.0], [0.5]]),
        "topk_ids": torch.tensor([[0], [1]]),
        "activation": SimpleNamespace(value="silu"),
        "apply_router_weight_on_input": False,
    }
    scales_and_maps = ["expert_map", "a1q_scale", "a2_scale", "expert_tokens_meta"]
    unused = ["global_num_experts", "workspace13", "workspace2", *scales_and_maps]
    nothing = dict.fromkeys(unused)
    experts._apply(owner, **(arguments | nothing | more))
    return output


def test_each_token_gets_what_its_expert_makes_of_it(experts: ModuleType) -> None:
    def made(scale: float) -> float:
        inner = torch.tensor(3.0 * scale)
        return float(4 * scale * torch.nn.functional.silu(inner) * inner)

    rows = compute(experts)
    assert torch.allclose(rows[0], torch.full((3,), made(1.0)))
    assert torch.allclose(rows[1], torch.full((3,), 0.5 * made(2.0)))


@pytest.mark.parametrize(
    "more",
    [
        {"activation": SimpleNamespace(value="gelu")},
        {"expert_map": torch.zeros(2)},
        {"w2_bias": torch.zeros(3)},
        {"apply_router_weight_on_input": True},
    ],
)
def test_experts_of_another_kind_are_refused(experts: ModuleType, more: dict[str, Any]) -> None:
    with pytest.raises(PlexError, match="deploy the rollout on a GPU") as refused:
        compute(experts, **more)
    assert refused.value.code is ErrorCode.BAD_REQUEST

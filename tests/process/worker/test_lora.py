"""Adapters against transformers with `W + alpha / rank * B A` in place of each weight W."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize

from plexsvc import lora
from plexsvc.worker import losses
from tests.fakes.fake_state_client import assemble
from tests.rigs.hf_reference import Reference
from tests.rigs.model_families import BOTH, FSDP, make_model
from tests.rigs.rank_host import Group, StartGroup
from tests.rigs.worker_batches import Arrays, errors, operation, plan, random_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOLERANCE = 1e-5
ONE, TWO = plan([[0, 2], [1], [3]]), plan([[0, 2], [3]], [[1], []])
STEP: dict[str, Any] = {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95}


class Merged(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """A weight with its adapter."""

    def __init__(self, a: np.ndarray, b: np.ndarray, *, scale: float) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.from_numpy(x.copy())) for x in (a, b))
        self.scale = scale

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.scale * self.b @ self.a


def adapt(model: Any, params: dict[str, np.ndarray], *, scale: float) -> dict[str, Any]:
    """Freeze a model, merge adapters into it, and return these by name."""
    model.requires_grad_(False)
    found: dict[str, Any] = {}
    for name, module in list(model.named_modules()):
        names = lora.names_of(f"{name}.weight")
        if names[0] in params:
            merged = Merged(*(params[one] for one in names), scale=scale)
            parametrize.register_parametrization(module, "weight", merged)
            found |= dict(zip(names, (merged.a, merged.b), strict=True))
    return found


def loss_of(reference: Reference, batch: Arrays) -> torch.Tensor:
    arrays = {name: torch.from_numpy(x.copy()) for name, x in batch.items() if name != "cu_seqlens"}
    loss = losses.resolve("cross_entropy", {}, role="actor")
    return loss(reference.logprobs(batch), arrays).loss


def run(group: Group, seq: int, kind: str, batch: Arrays | None = None, **more: Any) -> list[Any]:
    replies = group.execute(operation(seq, kind, batch, **more))
    assert not any(errors(replies)), [reply.result.error.message for reply in replies]
    return replies


@pytest.mark.parametrize(
    ("case", "parallel", "targets", "unembedding"),
    [
        ("qwen3", {"dp": 2}, (), False),
        ("qwen2.5 untied", {"dp": 2, "cp": 2}, (), True),
        ("phi3", {}, (), False),
        ("gemma2", {}, ("q_proj", "v_proj"), True),
    ],
)
def test_losses_gradients_and_steps_are_those_of_merged_weights(
    start_group: StartGroup,
    tmp_path: Path,
    case: str,
    parallel: dict[str, int],
    targets: tuple[str, ...],
    unembedding: bool,
) -> None:
    path = make_model(tmp_path / "model", (BOTH | FSDP)[case])
    group = start_group(
        backend="fsdp",
        model=str(path),
        parallel=parallel,
        lora={"rank": 4, "alpha": 6.0, "targets": list(targets), "unembedding": unembedding},
    )
    reference = Reference.load(path)
    first = assemble(group.ask("held"), "param")
    mine = adapt(reference.model, first, scale=1.5)
    assert set(mine) == set(first)
    has_head = any("lm_head" in name for name in mine)
    assert has_head == (unembedding and not reference.model.config.tie_word_embeddings)
    assert not any(values.any() for name, values in first.items() if "lora_B" in name)
    optimizer = torch.optim.AdamW(
        mine.values(),
        lr=STEP["lr"],
        eps=STEP["eps"],
        weight_decay=STEP["weight_decay"],
        betas=(STEP["beta1"], STEP["beta2"]),
    )
    for number in range(3):
        batch = random_batch(number)
        loss = loss_of(reference, batch)
        replies = run(
            group,
            2 * number + 1,
            "forward_backward",
            batch,
            split=TWO if "dp" in parallel else ONE,
            loss="cross_entropy",
        )
        told = next(reply.result.metrics["loss"] for reply in replies if reply.result.metrics)
        assert told == pytest.approx(loss.item(), rel=TOLERANCE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run(group, 2 * number + 2, "step", **STEP)
        held = group.ask("held")
        states = {
            "param": {name: one.detach() for name, one in mine.items()},
            "exp_avg": {name: optimizer.state[one]["exp_avg"] for name, one in mine.items()},
        }
        for kind, wanted in states.items():
            found = assemble(held, kind)
            largest = max(float(one.abs().max()) for one in wanted.values())
            for name, one in wanted.items():
                assert np.abs(found[name] - one.numpy()).max() <= TOLERANCE * largest, (kind, name)

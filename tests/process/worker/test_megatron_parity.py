"""Megatron ranks against transformers: logprobs, gradients, exported weights, in every layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.fakes.fake_state_client import assemble
from tests.rigs.hf_reference import Reference
from tests.rigs.rank_host import Group, StartGroup
from tests.rigs.worker_batches import answered_tokens, errors, operation, plan, random_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE = plan([[0, 2], [1], [3]])
TWO = plan([[0, 2], [3]], [[1], []])
LAYOUTS = {
    "one-rank": ({}, ONE),
    "tp2": ({"tp": 2}, ONE),
    "tp2-sp": ({"tp": 2, "sequence_parallel": True}, ONE),
    "pp2": ({"pp": 2}, ONE),
    "dp2": ({"dp": 2}, TWO),
    "cp2": ({"cp": 2}, ONE),
    "pp2-cp2": ({"pp": 2, "cp": 2}, ONE),
    "tp2-sp-cp2": ({"tp": 2, "sequence_parallel": True, "cp": 2}, ONE),
}
LOGPROB_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-5


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def gradients(group: Group) -> dict[str, np.ndarray]:
    group.ask("reduce_grads")
    return assemble(group.ask("held"), "grad")


def worst(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Return the largest difference relative to its tensor's largest entry."""
    assert set(found) == set(wanted)
    return max(
        float(np.abs(found[k] - wanted[k]).max() / (np.abs(wanted[k]).max() + 1e-12))
        for k in wanted
    )


def test_logprobs_gradients_and_export_agree_with_transformers(
    start_group: StartGroup, odd_model: Path, reference: Reference, layout: str
) -> None:
    parallel, split = LAYOUTS[layout]
    group = start_group(parallel=parallel)
    batch = random_batch(0)

    held = assemble(group.ask("held"), "param")
    stored = load_file(odd_model / "model.safetensors")
    assert set(held) == set(stored)
    assert all(np.array_equal(held[name], stored[name]) for name in stored)

    replies = group.execute(operation(1, "forward", batch, split=split, temperature=0.7))
    found = answered_tokens(replies, batch)
    wanted = reference.logprobs(batch, temperature=0.7).detach().numpy()
    assert np.abs(found - wanted).max() <= LOGPROB_TOLERANCE

    half_a, half_b = random_batch(1), random_batch(2)
    args = {"clip": 0.2}
    for seq, half in ((2, half_a), (3, half_b)):
        replies = group.execute(
            operation(seq, "forward_backward", half, split=split, loss="ppo", loss_args=args)
        )
        assert errors(replies) == [""] * len(replies)
        loss, _ = reference.gradients(half, "ppo", args)
        metrics = [dict(r.result.metrics) for r in replies if r.result.metrics]
        assert len(metrics) == 1, "exactly one rank reports metrics"
        assert metrics[0]["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert metrics[0]["tokens"] == np.count_nonzero(half["mask"])
    expected = [reference.gradients(half, "ppo", args)[1] for half in (half_a, half_b)]
    summed = {name: expected[0][name] + expected[1][name] for name in expected[0]}
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in summed.values()))

    assert worst(gradients(group), summed) <= GRADIENT_TOLERANCE

    # after the reduction above a step must not reduce again, so it is checked on a fresh window
    group.execute(operation(4, "zero_grad"))
    for seq, half in ((5, half_a), (6, half_b)):
        group.execute(
            operation(seq, "forward_backward", half, split=split, loss="ppo", loss_args=args)
        )
    replies = group.execute(operation(7, "step"))
    stepped = next(dict(r.result.metrics) for r in replies if r.result.metrics)
    assert stepped["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert not any(np.any(g) for g in assemble(group.ask("held"), "grad").values())


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("layout", "decay_vectors"),
    [*((name, False) for name in LAYOUTS), ("tp2", True)],
    indirect=["layout"],
)
def test_three_steps_equal_adamw_of_torch(
    start_group: StartGroup, odd_model: Path, layout: str, decay_vectors: bool
) -> None:
    parallel, split = LAYOUTS[layout]
    optimizer_table = {
        "beta2": 0.95,
        "weight_decay": 0.1,
        "clip_grad_norm": 1.0,
        "decay_vectors": decay_vectors,
    }
    group = start_group(parallel=parallel, optimizer=optimizer_table)
    reference = Reference.load(odd_model)
    named = dict(reference.model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": 0.1},
            {
                "params": [p for p in named.values() if p.dim() == 1],
                "weight_decay": 0.1 if decay_vectors else 0.0,
            },
        ],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-3,  # larger than rounding noise, which Adam would otherwise normalise
    )
    for step in range(3):
        batch = random_batch(10 + step)
        group.execute(
            operation(2 * step + 1, "forward_backward", batch, split=split, loss="cross_entropy")
        )
        replies = group.execute(operation(2 * step + 2, "step", lr=1e-3, eps=1e-3))
        assert errors(replies) == [""] * len(replies)
        _, grads = reference.gradients(batch, "cross_entropy")
        for name, param in named.items():
            param.grad = torch.from_numpy(grads[name])
        norm = torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        optimizer.step()
        metrics = next(dict(r.result.metrics) for r in replies if r.result.metrics)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert metrics["steps"] == step + 1
    held = group.ask("held")
    params = {name: p.detach().numpy() for name, p in named.items()}
    assert worst(assemble(held, "param"), params) <= 1e-5
    for kind in ("exp_avg", "exp_avg_sq"):
        moments = {name: optimizer.state[p][kind].numpy() for name, p in named.items()}
        assert worst(assemble(held, kind), moments) <= 2e-4


def test_untied_heads_agree_with_transformers_when_split(
    start_group: StartGroup, untied_model: Path
) -> None:
    reference = Reference.load(untied_model)
    batch = random_batch(5)
    wanted = reference.logprobs(batch).detach().numpy()
    for parallel in ({"tp": 2}, {"pp": 2}):
        group = start_group(parallel=parallel, model=str(untied_model))
        found = answered_tokens(group.execute(operation(1, "forward", batch, split=ONE)), batch)
        assert np.abs(found - wanted).max() <= LOGPROB_TOLERANCE

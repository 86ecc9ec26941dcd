"""Losses against their formulas, and the errors of wrong names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import plexclient.losses
from plexclient.losses import BUILT_IN_LOSSES
from plexsvc.batches import GRAD_ARRAY
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker import losses

LOGPROBS = torch.tensor([-1.0, -2.0, -0.5, -3.0])
ARRAYS = {
    "weights": torch.tensor([1.0, 0.5, 0.0, 2.0]),
    "logprobs": torch.tensor([-1.5, -2.0, -1.5, -2.0]),
    "advantages": torch.tensor([1.0, -1.0, 1.0, -2.0]),
    "mask": torch.tensor([1.0, 1.0, 1.0, 0.5]),
    "returns": torch.tensor([0.0, 1.0, -1.0, 2.0]),
    "cu_seqlens": torch.tensor([0, 3, 4], dtype=torch.int32),
}
RATIO = torch.exp(LOGPROBS - ARRAYS["logprobs"])
SEQUENCE_RATIO = torch.tensor([0.5, 0.5, 0.5, -1.0]).exp()


def run(
    name: str,
    args: Mapping[str, float] | None = None,
    *,
    arrays: Mapping[str, torch.Tensor] | None = None,
    outputs: torch.Tensor = LOGPROBS,
) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Return the loss, its gradient, and the metrics."""
    outputs = outputs.clone().requires_grad_()
    role = "critic" if name == "value_mse" else "actor"
    terms = losses.resolve(name, args or {}, role=role)(outputs, {**ARRAYS, **(arrays or {})})
    (gradient,) = torch.autograd.grad(terms.loss, outputs)
    sums, maxima = (
        {key: float(value) for key, value in found.items()} for found in (terms.sums, terms.maxima)
    )
    return float(terms.loss.detach()), gradient, losses.metrics(sums, maxima)


def test_cross_entropy_is_a_weighted_sum() -> None:
    loss, gradient, metrics = run("cross_entropy")
    assert loss == pytest.approx(1.0 + 1.0 + 6.0)
    assert torch.equal(gradient, -ARRAYS["weights"])
    assert metrics == {"loss": loss, "tokens": 3.0}


def test_importance_sampling_weighs_by_the_ratio() -> None:
    loss, gradient, metrics = run("importance_sampling")
    terms = RATIO * ARRAYS["advantages"] * ARRAYS["mask"]
    assert loss == pytest.approx(float(-terms.sum()))
    assert torch.allclose(gradient, -terms)
    weight = float(ARRAYS["mask"].sum())
    assert metrics["ratio_mean"] == pytest.approx(float((RATIO * ARRAYS["mask"]).sum()) / weight)
    assert metrics["kl"] > 0


def test_ppo_stops_the_gradient_of_clipped_tokens_only() -> None:
    _, gradient, metrics = run("ppo", {"clip": 0.2})
    # ratios: 1.65 (advantage +, clipped), 1 (not), 2.7 (+, clipped), 0.37 (advantage -, clipped)
    assert gradient[[0, 2, 3]].tolist() == [0.0, 0.0, 0.0]
    assert gradient[1] == pytest.approx(1.0)
    assert metrics["clipfrac"] == pytest.approx(2.5 / 3.5)


def test_ppo_takes_an_upper_clip_of_its_own() -> None:
    _, narrow, _ = run("ppo", {"clip": 0.2})
    _, wide, _ = run("ppo", {"clip": 0.2, "clip_high": 1.0})
    assert narrow[0] == 0.0
    assert wide[0] == pytest.approx(-float(RATIO[0]))
    assert wide[3] == 0.0


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    loss, gradient, _ = run("cispo", {"clip": 0.2})
    weight = RATIO.clamp(0.8, 1.2)
    wanted = -weight * ARRAYS["advantages"] * ARRAYS["mask"]
    assert torch.allclose(gradient, wanted)
    assert loss == pytest.approx(float((wanted * LOGPROBS).sum()))


def test_dro_pulls_quadratically_to_the_sampler() -> None:
    loss, gradient, _ = run("dro", {"beta": 0.5})
    gap = LOGPROBS - ARRAYS["logprobs"]
    objective = LOGPROBS * ARRAYS["advantages"] - 0.25 * gap**2
    assert loss == pytest.approx(float(-(objective * ARRAYS["mask"]).sum()))
    assert torch.allclose(gradient, -(ARRAYS["advantages"] - 0.5 * gap) * ARRAYS["mask"])


def test_gspo_is_the_papers_formula_by_each_sequences_length() -> None:
    old = torch.tensor([-1.5, -2.0, -1.5, -2.9, -1.0, -1.0, 0.0])
    start = torch.tensor([-1.0, -2.1, -1.5, -3.0, -1.0, -0.5, -7.0])
    adv, mask = torch.tensor([1.0] * 3 + [-2.0] * 4), torch.tensor([1.0] * 6 + [0.0])
    bounds = torch.tensor([0, 3, 5, 7], dtype=torch.int32)
    policy = start.clone().requires_grad_()
    wanted = torch.tensor(0.0)
    for low, high in ((0, 3), (3, 5), (5, 6)):  # the last token does not count
        ratio = (policy[low:high] - old[low:high]).mean().exp()
        kept = torch.min(ratio * adv[low], ratio.clamp(0.8, 1.1) * adv[low])
        wanted = wanted - (high - low) * kept
    wanted.backward()
    given = {"logprobs": old, "advantages": adv, "mask": mask, "cu_seqlens": bounds}
    clips = {"clip": 0.2, "clip_high": 0.1}
    loss, gradient, metrics = run("gspo", clips, arrays=given, outputs=start)
    assert loss == pytest.approx(float(wanted.detach()))
    assert policy.grad is not None
    assert torch.allclose(gradient, policy.grad)
    assert metrics["clipfrac"] == pytest.approx(3 / 6)


def test_value_mse_is_half_the_squared_error() -> None:
    loss, gradient, metrics = run("value_mse")
    error = LOGPROBS - ARRAYS["returns"]
    assert loss == pytest.approx(0.5 * float((error**2 * ARRAYS["mask"]).sum()))
    assert torch.allclose(gradient, error * ARRAYS["mask"])
    assert "value_mean" in metrics


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_a_policy_loss_reports_how_far_the_sampler_is_where_the_mask_counts(name: str) -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 0.5])
    _, _, metrics = run(name, arrays={"mask": mask})
    assert metrics["logprob_gap_mean"] == pytest.approx((0.5 + 1.0 + 1.0) / 3)
    assert metrics["logprob_gap_max"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", BUILT_IN_LOSSES)
@pytest.mark.parametrize("old", [-1e4, 1e4])
def test_what_stands_where_nothing_counts_never_reaches_the_loss(name: str, old: float) -> None:
    off = torch.tensor([1.0, 1.0, 0.0, 1.0])
    wild = {
        "mask": off,
        "weights": off,
        "logprobs": torch.tensor([-1.5, -2.0, old, -2.0]),
        "advantages": torch.tensor([1.0, -1.0, 3e38, -2.0]),
        "returns": torch.tensor([0.0, 1.0, 3e38, 2.0]),
    }
    tame = {**wild, "logprobs": ARRAYS["logprobs"], "advantages": ARRAYS["advantages"]}
    tame["returns"] = ARRAYS["returns"]
    outputs = torch.tensor([-1.0, -2.0, -torch.inf, -3.0])
    found, wanted = run(name, arrays=wild, outputs=outputs), run(name, arrays=tame)
    assert found[0] == wanted[0]
    assert torch.equal(found[1], wanted[1])
    assert found[2] == wanted[2]


def test_a_given_gradient_is_applied_as_it_is() -> None:
    outputs = LOGPROBS.clone().requires_grad_()
    given = torch.tensor([0.1, -0.2, 0.0, 3.0])
    terms = losses.given_gradient(outputs, {GRAD_ARRAY: given})
    (gradient,) = torch.autograd.grad(terms.loss, outputs)
    assert torch.equal(gradient, given)


def test_every_built_in_loss_of_the_client_is_known() -> None:
    assert losses._FUNCTIONS.keys() == BUILT_IN_LOSSES.keys()
    for name in BUILT_IN_LOSSES:
        run(name)


def formulas(text: str) -> dict[str, str]:
    """Return the formulas of a text by loss: the last code of a line that begins with its name."""
    lines = [re.findall(r"`([^`]+)`", line) for line in text.splitlines()]
    return {
        codes[0]: next(code for code in codes if "sum(" in code)
        for codes in lines
        if codes and codes[0] in BUILT_IN_LOSSES and "sum(" in "".join(codes)
    }


@pytest.mark.parametrize("where", ["page", "docstring"])
def test_the_formulas_that_users_read_are_those_that_are_computed(where: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "losses.md").read_text()
    text = page if where == "page" else str(plexclient.losses.__doc__)
    found = formulas(text)
    assert found.keys() == BUILT_IN_LOSSES.keys()
    names = {"logp": LOGPROBS, "value": LOGPROBS, "old": ARRAYS["logprobs"], "r": RATIO, **ARRAYS}
    names |= {
        "s": SEQUENCE_RATIO,
        "adv": ARRAYS["advantages"],
        "sum": torch.sum,
        "min": torch.minimum,
    }
    names |= {"clamp": torch.clamp, "stop_gradient": lambda x: x}
    names |= {"clip": losses.DEFAULT_CLIP, "clip_high": losses.DEFAULT_CLIP}
    own = {"gspo": dict(zip(("clip", "clip_high"), losses.GSPO_CLIPS, strict=True))}
    for name, formula in found.items():
        given = names | {"beta": losses.DEFAULT_BETA} | own.get(name, {})
        wanted = eval(formula, {}, given)
        assert run(name)[0] == pytest.approx(float(wanted)), name
        assert all(f"`{argument}`" in text for argument in BUILT_IN_LOSSES[name].arguments)
        assert set(BUILT_IN_LOSSES[name].arrays) <= set(re.findall(r"`(\w+)`", page))
    assert f"`clip` = {losses.DEFAULT_CLIP}" in page
    assert f"`beta` = {losses.DEFAULT_BETA}" in page


def test_a_wrong_name_lists_the_known_ones() -> None:
    with pytest.raises(PlexError) as caught:
        losses.resolve("pppo", {}, role="actor")
    assert caught.value.code == ErrorCode.UNKNOWN_LOSS
    assert all(name in caught.value.message for name in BUILT_IN_LOSSES)


@pytest.mark.parametrize(
    ("name", "args", "role", "fragment"),
    [
        ("ppo", {"clp": 0.2}, "actor", "clip, clip_high"),
        ("cross_entropy", {"clip": 0.2}, "actor", "none"),
        ("ppo", {}, "critic", "value_mse"),
        ("value_mse", {}, "actor", "critic"),
    ],
)
def test_wrong_arguments_and_roles_say_what_fits(
    name: str, args: dict[str, float], role: str, fragment: str
) -> None:
    with pytest.raises(PlexError) as caught:
        losses.resolve(name, args, role=role)
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert fragment in caught.value.message

"""Losses as the Tinker SDK names them, as built-in losses of the service.

Each is a sum over tokens. Where Tinker has no mask, every token counts: one that should not has the
weight or the advantage 0.
"""

# T = packed tokens of all datums.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plexsvc.errors import ErrorCode, PlexError, bad_request

Floats = npt.NDArray[np.float32]
Arrays = Mapping[str, npt.NDArray[Any]]
Args = Mapping[str, float]
Config = Mapping[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerLoss:
    """What a loss reads beside `target_tokens`, and what it may be configured with."""

    inputs: tuple[str, ...]
    config: Mapping[str, float]
    """What it may be given, with its defaults."""
    each: Callable[[Floats, Arrays, Args], Floats]
    """Returns `loss[T]` of `logprobs[T]`."""
    is_of_sequences: bool = False
    """Whether tokens depend on their sequence. Then those of advantage 0 are no part of it."""


def _ratios(logprobs: Floats, arrays: Arrays) -> Floats:
    found: Floats = np.exp(logprobs - arrays["logprobs"])
    return found


def _cross_entropy(logprobs: Floats, arrays: Arrays, _: Args) -> Floats:
    found: Floats = -arrays["weights"] * logprobs
    return found


def _importance_sampling(logprobs: Floats, arrays: Arrays, _: Args) -> Floats:
    found: Floats = -_ratios(logprobs, arrays) * arrays["advantages"]
    return found


def _ppo(logprobs: Floats, arrays: Arrays, args: Args) -> Floats:
    return _surrogate(_ratios(logprobs, arrays), arrays, args)


def _gspo(logprobs: Floats, arrays: Arrays, args: Args) -> Floats:
    mask, bounds = arrays["mask"], arrays["cu_seqlens"]
    gaps = np.where(mask != 0, logprobs - arrays["logprobs"], np.float32(0))
    sums, counts = (np.add.reduceat(each, bounds[:-1]) for each in (gaps, mask))
    means = sums / np.maximum(counts, 1)
    return _surrogate(np.repeat(np.exp(means), np.diff(bounds)), arrays, args)


def _surrogate(ratios: Floats, arrays: Arrays, args: Args) -> Floats:
    adv = arrays["advantages"]
    clipped = np.clip(ratios, 1 - args["clip"], 1 + args["clip_high"])
    found: Floats = -np.minimum(ratios * adv, clipped * adv)
    return found


def _cispo(logprobs: Floats, arrays: Arrays, args: Args) -> Floats:
    clipped = np.clip(_ratios(logprobs, arrays), 1 - args["clip"], 1 + args["clip_high"])
    found: Floats = -clipped * arrays["advantages"] * logprobs
    return found


def _dro(logprobs: Floats, arrays: Arrays, args: Args) -> Floats:
    gaps = logprobs - arrays["logprobs"]
    found: Floats = -(logprobs * arrays["advantages"] - 0.5 * args["beta"] * gaps**2)
    return found


_POLICY: Final = ("logprobs", "advantages")
_CLIPS: Final = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

LOSSES: Final[Mapping[str, TinkerLoss]] = {
    "cross_entropy": TinkerLoss(inputs=("weights",), config={}, each=_cross_entropy),
    "importance_sampling": TinkerLoss(inputs=_POLICY, config={}, each=_importance_sampling),
    "ppo": TinkerLoss(inputs=_POLICY, config=_CLIPS, each=_ppo),
    "cispo": TinkerLoss(inputs=_POLICY, config=_CLIPS, each=_cispo),
    "dro": TinkerLoss(inputs=_POLICY, config={"beta": 0.05}, each=_dro),
    "gspo": TinkerLoss(
        inputs=_POLICY,
        config={"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
        each=_gspo,
        is_of_sequences=True,
    ),
}


def find(name: str) -> TinkerLoss:
    """Return a loss.

    Raises:
        PlexError: `unknown_loss`.
    """
    if name not in LOSSES:
        raise PlexError(
            ErrorCode.UNKNOWN_LOSS,
            f"loss_fn {name!r} is not offered; offered are {', '.join(LOSSES)}. For your own: "
            "forward_backward_custom",
            loss=name,
        )
    return LOSSES[name]


def arguments_of(name: str, config: Config) -> dict[str, float]:
    """Return the arguments of the built-in loss.

    Raises:
        PlexError: `bad_request`, naming a field of `loss_fn_config`.
    """
    known = find(name).config
    for field, value in config.items():
        if field not in known:
            fitting = ", ".join(known) or "nothing"
            raise bad_request(f"loss_fn_config.{field}: {name} takes {fitting}", field=field)
        if isinstance(value, str) or not np.isfinite(value):
            raise bad_request(f"loss_fn_config.{field}: it is {value!r}, no number", field=field)
    given = {field: float(config.get(field, default)) for field, default in known.items()}
    if "beta" in given or not given:
        return given
    low, high = given["clip_low_threshold"], given["clip_high_threshold"]
    if not 0 <= low <= 1 <= high:
        raise bad_request(
            f"loss_fn_config: clip_low_threshold {low:g} and clip_high_threshold {high:g} must be "
            "0 <= low <= 1 <= high"
        )
    return {"clip": 1 - low, "clip_high": high - 1}

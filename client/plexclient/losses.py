"""The built-in losses: the arrays and arguments that each takes, and the role that it trains.

With `logp` the policy's logprob of each target, `old` the batch's `logprobs` (the sampler's), `adv`
its `advantages` and `r = exp(logp - old)`, each is a sum over all tokens, divided by nothing:

- `cross_entropy`: `-sum(weights * logp)`.
- `importance_sampling`: `-sum(r * adv * mask)`.
- `ppo`: `-sum(min(r * adv, clamp(r, 1 - clip, 1 + clip_high) * adv) * mask)`; `clip` is 0.2 unless
  given, and `clip_high` is `clip`.
- `cispo`: `-sum(stop_gradient(clamp(r, 1 - clip, 1 + clip_high)) * adv * logp * mask)`; as `ppo`.
- `dro`: `-sum((adv * logp - beta / 2 * (logp - old)**2) * mask)`; `beta` is 0.05 unless given.
- `gspo`: `-sum(min(s * adv, clamp(s, 1 - clip, 1 + clip_high) * adv) * mask)`, with `s` the
  exponential of the mean of `logp - old` over a sequence's tokens that count; its gradient is that
  of GSPO-token. `clip` is 0.0003 and `clip_high` 0.0004 unless one is given.
- `value_mse`: `0.5 * sum((value - returns)**2 * mask)`, of a critic.

`docs/losses.md` says what they are for and which metrics they report. One more loss is an entry
here and the function of its name in `plexsvc/worker/losses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from plexclient.errors import ErrorCode, PlexError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one loss takes."""

    arrays: tuple[str, ...]
    """Per-token arrays that it reads beside `tokens` and `cu_seqlens`."""

    arguments: tuple[str, ...] = ()
    """Numbers that it may be given, each finite and not negative."""

    role: str = "actor"
    """Which deployments it trains: actors or critics."""


_POLICY: Final = ("target_tokens", "logprobs", "advantages", "mask")

BUILT_IN_LOSSES: Final[Mapping[str, Loss]] = {
    "cross_entropy": Loss(arrays=("target_tokens", "weights")),
    "importance_sampling": Loss(arrays=_POLICY),
    "ppo": Loss(arrays=_POLICY, arguments=("clip", "clip_high")),
    "cispo": Loss(arrays=_POLICY, arguments=("clip", "clip_high")),
    "dro": Loss(arrays=_POLICY, arguments=("beta",)),
    "gspo": Loss(arrays=_POLICY, arguments=("clip", "clip_high")),
    "value_mse": Loss(arrays=("returns", "mask"), role="critic"),
}


def find_loss(name: str) -> Loss:
    """Return the built-in loss called `name`.

    Raises:
        PlexError: `unknown_loss`, listing the known ones.
    """
    if name not in BUILT_IN_LOSSES:
        raise PlexError(
            ErrorCode.UNKNOWN_LOSS,
            f"loss {name!r} is not built in; known are {', '.join(BUILT_IN_LOSSES)}. For your own: "
            "forward, differentiate on the CPU, backward(batch, grad_logprobs)",
            loss=name,
        )
    return BUILT_IN_LOSSES[name]

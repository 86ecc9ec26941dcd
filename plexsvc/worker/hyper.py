"""The hyper-parameters of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """AdamW's hyper-parameters of one step. `clip_grad_norm` 0 turns clipping off."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad_norm: float = 0.0

"""Share of the weights that a GRPO step leaves as they were, bit by bit, in fp32 and in bf16.

    python -m benchmarks.step_sparsity [--steps 6] [--lrs 3e-4 1e-5 1e-6]

The demo's model (random weights) samples groups of answers, is rewarded for digits and takes GRPO
steps by AdamW over fp32 weights, as `examples/grpo_arithmetic.py` sets it. `fp32` compares these
weights before and after a step, `bf16` what would be published of them in bf16. Medians over the
steps but the first two, and the delta of all weights as a share of their bytes. JSON lines.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.service import report
from plexsvc.weights import deltas
from plexsvc.weights.random_model import make_model

GROUPS: Final = 8
SAMPLES: Final = 8
PROMPT: Final = 8
TOKENS: Final = 24
DIGITS: Final = range(2, 12)
"""Tokens of the demo's vocabulary that are digits."""


def steps(model: Any, *, lr: float, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the flat weights before and after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(count):
        prompts = torch.randint(2, 50, (GROUPS, PROMPT)).repeat_interleave(SAMPLES, dim=0)
        tokens = prompts
        with torch.no_grad():
            for _ in range(TOKENS):
                logits = model(tokens).logits[:, -1].float()
                tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        answers = tokens[:, PROMPT:]
        rewards = torch.isin(answers, torch.tensor(list(DIGITS))).float().mean(1)
        groups = rewards.view(GROUPS, SAMPLES)
        spread = groups.std(1, keepdim=True) + 1e-6
        advantages = ((groups - groups.mean(1, keepdim=True)) / spread).view(-1, 1)
        logits = model(tokens[:, :-1]).logits[:, PROMPT - 1 :].float()
        chosen = logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]
        loss = -(advantages * (chosen - chosen.detach()).exp()).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = flat(model)
        optimizer.step()
        optimizer.zero_grad()
        yield before, flat(model)


def flat(model: Any) -> torch.Tensor:
    """Return all weights."""
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def found(before: torch.Tensor, after: torch.Tensor, width: int) -> tuple[float, float]:
    """Return the share of elements that stay, and of the bytes that their delta has."""
    bits = torch.int16 if width == 2 else torch.int32
    old, new = (one.view(bits).numpy() for one in (before, after))
    one, other = memoryview(old).cast("B"), memoryview(new).cast("B")
    delta = deltas.encode(one, other, width=width, most=2 * len(one))
    assert delta is not None, "as large as may be"
    return float((old == new).mean()), len(delta) / len(one)


def main() -> None:
    """Measure."""
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-4, 1e-5, 1e-6])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        make_model(Path(place) / "model", seed=0)
        for lr in options.lrs:
            model = AutoModelForCausalLM.from_pretrained(Path(place) / "model", dtype=torch.float32)
            pairs = list(steps(model, lr=lr, count=options.steps))[2:]
            singles = [found(*pair, width=4) for pair in pairs]
            halves = [found(*(one.bfloat16() for one in pair), width=2) for pair in pairs]
            for dtype, each in (("fp32", singles), ("bf16", halves)):
                report(
                    dtype=dtype,
                    lr=lr,
                    unchanged=round(statistics.median(stay for stay, _ in each), 4),
                    delta_of_bytes=round(statistics.median(part for _, part in each), 4),
                )


if __name__ == "__main__":
    main()

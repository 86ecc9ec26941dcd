"""Our AdamW: the bits of torch's, and no allocation once it has begun to change anything."""

from __future__ import annotations

import pytest
import torch

from plexclient.specs import AdamW
from plexsvc.worker.backends import adamw
from tests.rigs.scarcity import Allocations

SHAPES = ((7, 5), (33,), (0, 4), (128, 3))


@pytest.mark.parametrize("scratch", [64, adamw.SCRATCH_ELEMENTS])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch_and_allocate_nothing(
    monkeypatch: pytest.MonkeyPatch, scratch: int, weight_decay: float
) -> None:
    monkeypatch.setattr(adamw, "SCRATCH_ELEMENTS", scratch)
    torch.manual_seed(3)
    hyper = AdamW(lr=1e-2, beta1=0.8, beta2=0.97, eps=1e-7, weight_decay=weight_decay)
    theirs = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    ours = [
        adamw.Tensors(
            param=param.detach().clone(),
            grad=torch.zeros_like(param),
            exp_avg=torch.zeros_like(param),
            exp_avg_sq=torch.zeros_like(param),
            decays=param.dim() > 1,
        )
        for param in theirs
    ]
    groups = [
        {"params": [p for p in theirs if (p.dim() > 1) is big], "weight_decay": weight_decay * big}
        for big in (True, False)
    ]
    torch_adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.97), eps=1e-7)
    for step in range(1, 4):
        for mine, param in zip(ours, theirs, strict=True):
            param.grad = torch.randn(param.shape)
            mine.grad.copy_(param.grad)
        torch_adamw.step()
        update = adamw.Update(ours, hyper)
        with Allocations() as made:
            update.apply(steps=step)
        assert made.count == 0
        for mine, param in zip(ours, theirs, strict=True):
            assert torch.equal(mine.param, param)

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


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_step_in_host_memory_allocates_nothing_and_is_that_of_a_device_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    torch.manual_seed(4)
    hyper = AdamW(lr=1e-2, beta1=0.8, beta2=0.97, eps=1e-7, weight_decay=0.1)
    kinds = ("param", "grad", "exp_avg", "exp_avg_sq")
    device, host, alone = (
        [
            adamw.Tensors(**{kind: torch.zeros(shape) for kind in kinds}, decays=len(shape) > 1)
            for shape in SHAPES
        ]
        for _ in range(3)
    )
    monkeypatch.setattr(adamw, "PART_ELEMENTS", 64)
    for step in range(1, 4):
        for three in zip(device, host, alone, strict=True):
            grad = torch.randn(three[0].grad.shape)
            for one in three:
                one.grad.copy_(grad)
        adamw.Update(device, hyper).apply(steps=step)
        adamw.HostUpdate(alone, hyper, num_threads=1).apply(steps=step)
        update = adamw.HostUpdate(host, hyper, num_threads=num_threads)
        with Allocations() as made:
            update.apply(steps=step)
        assert made.count == 0
        for theirs, ours, same in zip(device, host, alone, strict=True):
            for kind in ("param", "exp_avg", "exp_avg_sq"):
                found = getattr(ours, kind)
                assert torch.allclose(found, getattr(theirs, kind), rtol=1e-5, atol=1e-7), kind
                assert torch.equal(found, getattr(same, kind)), "the number of threads is a matter"
    grads = [one.grad for one in host]
    squares = adamw.host_squares(grads, num_threads=num_threads)
    assert squares.item() == pytest.approx(sum(g.double().square().sum().item() for g in grads))

"""Where Megatron's gradients and masters come to lie."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import warnings; warnings.simplefilter("ignore")
import plexsvc.worker.preload
import torch
from plexsvc.worker.backends.megatron import state

layout = state.Arrangement(
    itemsize=2, places=(), param_bytes=12, buffers=(range(6),), kept=(), is_shared=False
)
memory = {"grads": torch.full((24,), 7, dtype=torch.uint8)}
memory["masters"] = torch.zeros(128, dtype=torch.uint8)
param = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
with state._AllocatingIn(memory, layout, is_new=True):
    grads = torch.zeros(6, dtype=torch.float32, device="cpu", requires_grad=False)
    masters = [param.detach().clone().float() for _ in range(2)]
    others = [torch.zeros(5), torch.ones(3).float()]
base = memory["masters"].data_ptr()
assert grads.data_ptr() == memory["grads"].data_ptr() and not grads.any()
assert [master.data_ptr() - base for master in masters] == [0, 64]
assert all(master.tolist() == [1.0, 2.0, 3.0] for master in masters)
assert not any(0 <= tensor.data_ptr() - base < 128 for tensor in others)
memory["grads"].fill_(7)
memory["masters"].fill_(7)
with state._AllocatingIn(memory, layout, is_new=False):
    torch.zeros(6, dtype=torch.float32)
    param.detach().clone().float()
assert (memory["grads"] == 7).all() and (memory["masters"] == 7).all(), "they hold the state"
print("in the regions")
"""


def test_gradients_and_masters_are_made_in_the_regions_and_nothing_else_is() -> None:
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("in the regions\n"), done.stderr

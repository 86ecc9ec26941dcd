"""Memory that runs out at a chosen allocation of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TEXT = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
)
"""What torch says on a CPU."""


class Allocations(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Counts operations whose results lie in memory of their own; raises at one, if asked."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        super().__init__()
        self.count = 0
        self._fails_at = fails_at

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        given = kwargs or {}
        inputs = _memories((args, given))
        found = func(*args, **given)
        if _memories(found) - inputs:
            self.count += 1
            if self.count - 1 == self._fails_at:
                raise RuntimeError(TEXT)
        return found


def _memories(tree: object) -> set[int]:
    found = [leaf for leaf in tree_leaves(tree) if type(leaf) in {torch.Tensor, torch.nn.Parameter}]
    return {tensor.untyped_storage().data_ptr() for tensor in found if tensor.numel()}

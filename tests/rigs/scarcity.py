"""Memory of torch: that which runs out at a chosen allocation, and how much is held at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
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
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(tree)}


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Measures the most bytes that results of operations take at once, whoever keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

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
        for tensor in _tensors(found):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in inputs:
                self._live[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._live = {at: one for at, one in self._live.items() if not one[0].expired()}
        self.most = max(self.most, sum(nbytes for _, nbytes in self._live.values()))
        return found


def _tensors(tree: object) -> list[torch.Tensor]:
    found = [leaf for leaf in tree_leaves(tree) if type(leaf) in {torch.Tensor, torch.nn.Parameter}]
    return [tensor for tensor in found if tensor.numel()]

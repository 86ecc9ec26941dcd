"""Layout of tensors in a rank's flat memory regions, and views of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

ALIGNMENT: Final = 64
"""Every tensor starts at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """Where one tensor lies in its region."""

    offset: int
    shape: tuple[int, ...]


class RegionLayout:
    """Tensors of one dtype laid end to end, each aligned.

    >>> layout = RegionLayout(itemsize=4)
    >>> [layout.add(shape).offset for shape in [(3,), (2, 2)]], layout.nbytes
    ([0, 64], 128)
    """

    def __init__(self, *, itemsize: int) -> None:
        self.itemsize = itemsize
        self.nbytes = 0

    def add(self, shape: Iterable[int]) -> TensorPlace:
        """Return the place of the next tensor."""
        place = TensorPlace(offset=self.nbytes, shape=tuple(shape))
        size = math.prod(place.shape) * self.itemsize
        self.nbytes += -(-size // ALIGNMENT) * ALIGNMENT
        return place


def view(memory: torch.Tensor, place: TensorPlace, *, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor at `place` of `memory` (uint8, flat); it aliases the region."""
    nbytes = math.prod(place.shape) * dtype.itemsize
    flat = memory.narrow(0, place.offset, nbytes)
    return flat.view(dtype).view(place.shape)

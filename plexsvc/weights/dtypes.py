"""Data types of weights: their safetensors name, size and bits, and their name in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """A data type; `carrier` is a numpy type of the same size, as numpy has no bfloat16."""

    name: str
    carrier: np.dtype[Any]
    torch: str
    """`getattr(torch, torch)` is the type in torch."""


def _dtype(name: str, carrier: str, torch: str) -> Dtype:
    return Dtype(name=name, carrier=np.dtype(carrier), torch=torch)


DTYPES: Final[Mapping[str, Dtype]] = {
    dtype.name: dtype
    for dtype in (
        _dtype("F64", "<u8", "float64"),
        _dtype("F32", "<u4", "float32"),
        _dtype("BF16", "<u2", "bfloat16"),
        _dtype("F16", "<u2", "float16"),
        _dtype("I64", "<i8", "int64"),
        _dtype("I32", "<i4", "int32"),
        _dtype("U8", "u1", "uint8"),
        _dtype("BOOL", "u1", "bool"),
    )
}
"""Every data type that a version or a checkpoint may have, by its safetensors name."""

NAMES_IN_TORCH: Final = {f"torch.{dtype.torch}": dtype.name for dtype in DTYPES.values()}
"""The safetensors name of each data type by `str` of the one in torch."""

"""Seeds: every sample has its own, and every token of a sample draws from its own position.

A draw depends on (sample seed, position) alone, never on what else ran or on what ran before, so a
sample goes on exactly on any instance, whatever was preempted, retried or moved.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

SEED_MASK: Final = (1 << 63) - 1
"""Seeds are 63 bits: the engines' generators take signed 64-bit ones."""

_SALT: Final = b"plexsvc sample seed 1"


def sample_seed(root: bytes, *, prompt_index: int, sample_index: int) -> int:
    """Return the seed of one sample; `root` is the request's seed or the operation's id."""
    packed = root + _SALT + struct.pack("<QQ", prompt_index, sample_index)
    return xxhash.xxh3_64_intdigest(packed) & SEED_MASK


def root_of_seed(seed: int) -> bytes:
    """Return the root bytes of a request's explicit seed."""
    return struct.pack("<Q", seed)


def draw_seed(seed: int, *, position: int) -> int:
    """Return the generator seed for draw number `position` of the sample with `seed`."""
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", seed, position)) & SEED_MASK

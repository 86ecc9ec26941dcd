"""Deltas give back each block bit by bit, and refuse what is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import PlexError
from plexsvc.weights import deltas


def applied(base: bytes, delta: bytes, width: int) -> bytes:
    into = bytearray(len(base))
    deltas.decode(memoryview(into), base=memoryview(base), delta=delta, width=width)
    return bytes(into)


@given(
    st.sampled_from(deltas.WIDTHS),
    st.integers(0, 4000),
    st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_a_delta_turns_one_block_into_the_other(
    width: int, count: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 1 << 16, count).astype(f"u{width}")
    new = np.where(rng.random(count) < share, base ^ 257, base).astype(base.dtype)
    one, other = base.tobytes(), new.tobytes()
    delta = deltas.encode(memoryview(one), memoryview(other), width=width, most=1 << 20)
    assert delta is not None
    assert applied(one, delta, width) == other


def test_a_delta_that_is_too_large_is_none() -> None:
    base, new = memoryview(bytes(800)), memoryview(b"\1" * 800)
    for width in deltas.WIDTHS:
        assert deltas.encode(base, new, width=width, most=799) is None
    assert deltas.encode(base, base, width=2, most=4) is not None


@pytest.mark.parametrize(
    "delta",
    [
        b"",
        b"\1\0\0\0",
        b"\1\0\0\0\0\0",
        b"\1\0\0\0\xff\0\0",
        b"\1\0\0\0\x08\0\0",
        b"\1\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0",
    ],
)
def test_what_is_no_delta_of_a_block_is_refused(delta: bytes) -> None:
    with pytest.raises(PlexError, match="a delta of"):
        applied(bytes(16), delta, 2)
    with pytest.raises(PlexError, match="a delta of"):
        applied(bytes(16), b"\0\0\0\0", 3)

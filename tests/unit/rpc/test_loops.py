"""Full passes of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from plexsvc.rpc.loops import BUSY_PASS_US, IDLE_PASS_US, FullPasses


@pytest.fixture
def passes() -> Iterator[FullPasses]:
    before = gc.get_threshold()
    FullPasses.take_over()
    yield FullPasses()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("passes")
def test_what_is_held_while_a_loop_is_busy_is_never_looked_through() -> None:
    before = [generation["collections"] for generation in gc.get_stats()]
    held = [[number] for number in range(300_000)]
    after = [generation["collections"] for generation in gc.get_stats()]
    assert len(held) == 300_000
    assert after[0] > before[0]
    assert after[2] == before[2]


def test_an_idle_loop_makes_a_pass_sooner_than_a_busy_one(passes: FullPasses) -> None:
    assert passes.look(BUSY_PASS_US, is_idle=False)
    later_us = BUSY_PASS_US + IDLE_PASS_US
    assert not passes.look(later_us - 1, is_idle=True)
    assert not passes.look(later_us, is_idle=False)
    assert passes.look(later_us, is_idle=True)
    assert passes.look(later_us + BUSY_PASS_US, is_idle=False)

"""The segment tree against a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from plexsvc.scheduler.core.structures.segment_tree import SegmentTree

FRACTION = st.integers(0, 1 << 30)


class TreeRace(RuleBasedStateMachine):
    """Every operation goes to the tree and to a plain list; answers must agree."""

    tree = SegmentTree(1)
    naive: list[int] = []  # noqa: RUF012 - replaced by `begin`

    @initialize(size=st.one_of(st.integers(1, 100), st.integers(1000, 2500)))
    def begin(self, size: int) -> None:
        self.tree = SegmentTree(size, initial=8)
        self.naive = [8] * size

    def bounds(self, a: int, b: int) -> tuple[int, int]:
        size = len(self.naive)
        return min(a % (size + 1), b % (size + 1)), max(a % (size + 1), b % (size + 1))

    @rule(a=FRACTION, b=FRACTION, delta=st.integers(-9, 9))
    def add(self, a: int, b: int, delta: int) -> None:
        start, end = self.bounds(a, b)
        self.tree.add(start, end, delta)
        for slot in range(start, end):
            self.naive[slot] += delta

    @rule(a=FRACTION, b=FRACTION)
    def minimum(self, a: int, b: int) -> None:
        start, end = self.bounds(a, b)
        if start < end:
            assert self.tree.minimum(start, end) == min(self.naive[start:end])

    @invariant()
    def same_values(self) -> None:
        if self.naive:
            self.tree.check()
            assert self.tree.values().tolist() == self.naive


TreeRace.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestTreeRace = TreeRace.TestCase


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=200))
def test_a_profile_is_added_slot_by_slot(values: list[int]) -> None:
    tree = SegmentTree(len(values), initial=1)
    tree.add_profile(np.array(values, dtype=np.int64))
    tree.check()
    assert tree.values().tolist() == [value + 1 for value in values]

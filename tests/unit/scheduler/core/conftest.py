"""A fake world around the core."""

from __future__ import annotations

import pytest

from tests.fakes.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    """One training device of 100 bytes, jobs `a` and `b` of 60 bytes each up; `b` is resident."""
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    return world

"""A fake world in which a job can move."""

from __future__ import annotations

import pytest

from tests.fakes.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    """Two nodes of one training device; job `a` on the first."""
    world = FakeWorld()
    world.join("n0")
    world.join("n1")
    world.bring_up("a")
    return world

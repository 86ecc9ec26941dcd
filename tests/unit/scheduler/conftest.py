"""A driver over fake nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rigs.scheduler_rig import Rig, start_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """One node with two training and two rollout devices."""
    async with start_rig(tmp_path, nodes=[{"train": 2, "rollout": 2}]) as started:
        yield started

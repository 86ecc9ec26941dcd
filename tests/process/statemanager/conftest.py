"""A real state manager daemon for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rigs.state_daemon import Daemon


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with two 4 MiB devices; parametrise indirectly to add configuration lines."""
    keys = getattr(request, "param", "host_bytes = 67108864\nstaging_bytes = 1048576")
    with ExitStack() as stack:
        yield Daemon(tmp_path, stack, keys=keys, devices=2)

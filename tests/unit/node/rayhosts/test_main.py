"""What is refused on a Ray node before anything starts there, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.node.rayhosts.main import NodeHost


@pytest.mark.parametrize("skew_s", [-3600, 90])
def test_a_host_with_a_wrong_clock_gets_no_agent(tmp_path: Path, skew_s: int) -> None:
    order = {"cluster": "ours", "node_id": "n1", "directory": str(tmp_path / "nodes")}
    said = NodeHost().keep(order, SystemClock().wall_us() / 1e6 - skew_s)
    assert f"clock is {skew_s} s off" in said["problem"]
    assert not (tmp_path / "nodes").exists()

"""What a host has when nobody configured any devices."""

from __future__ import annotations

from pathlib import Path

from plexsvc.node.discovery import half_of_memory


def test_a_container_gives_half_of_what_it_may_take(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = half_of_memory(limit)
    limit.write_text("max\n")
    assert half_of_memory(limit) == whole
    limit.write_text("1048576\n")
    assert half_of_memory(limit) == 524288
    limit.write_text(f"{4 * whole}\n")
    assert half_of_memory(limit) == whole

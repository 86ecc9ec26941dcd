"""The picture of a demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.demo.plots import draw
from plexsvc.demo.report import DemoOutcome
from tests.rigs.demo_runs import RISING, make_run, make_span


@pytest.mark.parametrize("has_part", [True, False])
def test_a_picture_is_written_with_the_demos_own_part_and_without(
    tmp_path: Path, has_part: bool
) -> None:
    run = make_run("bits", rewards=RISING)
    outcome = DemoOutcome(
        without=[run],
        runs=[run],
        spans=[make_span("step", 0, 4_000_000), make_span("load", 4_000_000, 5_000_000)],
        figures={},
        lines=[],
        checks=[],
        curves={"tokens": [(1_000_000, 3), (2_000_000, 5)]} if has_part else {},
    )
    draw(tmp_path / "demo.png", outcome)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")

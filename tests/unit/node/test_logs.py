"""Logs have safe names, short tails and a bounded number."""

from __future__ import annotations

import os
from pathlib import Path

from plexsvc.node import logs


def test_a_name_holds_no_separator_of_a_path() -> None:
    path = logs.log_path(Path("d"), proc_id="../job-1/actor/0", incarnation=2)
    assert path == Path("d/.._job-1_actor_0.2.log")


def test_a_tail_begins_at_a_lines_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("first line\nsecond line\nthird line\n")
    assert logs.tail(path) == "first line\nsecond line\nthird line"
    assert logs.tail(path, num_bytes=15) == "third line"
    path.write_bytes(b"\xff" * 100)
    assert len(logs.tail(path, num_bytes=10)) == 10
    assert logs.tail(tmp_path / "missing.log") == ""


def test_the_oldest_logs_go_and_living_ones_stay(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(5)]
    for age, path in enumerate(paths):
        path.touch()
        os.utime(path, (age, age))
    logs.prune(tmp_path, max_logs=2, keep={paths[0]})
    assert sorted(tmp_path.glob("*.log")) == [paths[0], paths[3], paths[4]]

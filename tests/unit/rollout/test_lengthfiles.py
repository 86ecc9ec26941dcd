"""Files of lengths: what a successor reads is what was known last, whatever a kill has torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.rollout.lengthfiles import FOLDER, SPARE, LengthFile
from plexsvc.rollout.recordfiles import recover

ONE, TWO = b"1" * 16, b"2" * 16


def test_the_latest_of_each_prompt_is_read_in_the_order_in_which_they_were_seen(
    tmp_path: Path,
) -> None:
    file = LengthFile(tmp_path, "job/rollout")
    file.keep([ONE, TWO], {ONE: 3.0, TWO: 4.5})
    file.keep([ONE], {TWO: 4.5, ONE: 7.0})
    again = LengthFile(tmp_path, "job/rollout")
    assert list(again.read().items()) == [(TWO, 4.5), (ONE, 7.0)]
    assert LengthFile(tmp_path, "job/other").read() == {}
    assert list(recover(tmp_path)) == [], "no token record"


def test_an_entry_that_a_kill_tore_is_left_out_and_the_next_ones_are_whole(tmp_path: Path) -> None:
    LengthFile(tmp_path, "a").keep([ONE, TWO], {ONE: 3.0, TWO: 4.0})
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    successor = LengthFile(tmp_path, "a")
    assert successor.read() == {ONE: 3.0}
    successor.keep([TWO], {ONE: 3.0, TWO: 9.0})
    assert LengthFile(tmp_path, "a").read() == {ONE: 3.0, TWO: 9.0}


def test_the_file_does_not_grow_with_the_generates(tmp_path: Path) -> None:
    file = LengthFile(tmp_path, "a")
    names = [number.to_bytes(16) for number in range(1000)]
    for epoch in range(20):
        file.keep(names, dict.fromkeys(names, float(epoch)))
    (path,) = (tmp_path / FOLDER).iterdir()
    assert path.stat().st_size <= 24 * (3 * len(names) + SPARE)
    assert set(LengthFile(tmp_path, "a").read().values()) == {19.0}
    file.remove()
    file.remove()
    assert LengthFile(tmp_path, "a").read() == {}


def test_a_disk_that_fails_costs_what_was_remembered_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    LengthFile(tmp_path, "a").keep([ONE], {ONE: 3.0})
    assert "lengths not kept for a successor" in caplog.text
    (tmp_path / FOLDER).unlink()
    file = LengthFile(tmp_path, "a")
    file.keep([ONE], {ONE: 3.0})
    (path,) = (tmp_path / FOLDER).iterdir()
    path.unlink()
    path.mkdir()
    assert file.read() == {}
    assert "lengths not read back" in caplog.text

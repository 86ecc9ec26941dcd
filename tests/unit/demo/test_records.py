"""Records: what the example's recorder writes is what the demo reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.demo.records import read_record
from plexsvc.errors import ErrorCode, PlexError

STEP = {
    "device_s": 0.1,
    "gap_mean": 1e-7,
    "gap_max": 1e-6,
    "wait_s": 0.6,
    "wall_s": 1.0,
    "tokens": 64,
    "complete": 8,
    "instances_lost": 0,
}


def write(path: Path, *, is_whole: bool) -> None:
    from recorder import Recorder

    recorder = Recorder(path)
    recorder.write("held_out", when="before", accuracy=0.25)
    for step in range(3):
        recorder.write("step", step=step, reward=step / 2, **STEP)
    if is_whole:
        recorder.write("held_out", when="after", accuracy=0.5)
        recorder.write("hostile", sent=14, failed=13)
        recorder.write("end", cpu_s=2.5)


@pytest.mark.usefixtures("examples")
def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "r.jsonl", is_whole=True)
    record = read_record(tmp_path / "deep" / "r.jsonl")
    assert record.rewards == [0.0, 0.5, 1.0]
    assert (record.held_out_before, record.held_out_after, record.cpu_s) == (0.25, 0.5, 2.5)
    assert (record.hostile_sent, record.hostile_failed) == (14, 13)
    assert record.a_second("wait_s") == pytest.approx(0.6)


@pytest.mark.usefixtures("examples")
def test_a_record_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", is_whole=False)
    with pytest.raises(PlexError, match="no whole record") as caught:
        read_record(tmp_path / "r.jsonl")
    assert caught.value.code == ErrorCode.NOT_FOUND

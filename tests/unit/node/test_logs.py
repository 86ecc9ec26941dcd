"""Logs have safe names, short tails and a bounded number."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

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


STARTED = "INFO rank is ready\nOptimizerConfig(lr=0.0, weight_decay=0.01)\n"
TRACE = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
RuntimeError: out of luck"""


@pytest.mark.parametrize(
    ("log", "killed", "other"),
    [
        (STARTED, "", STARTED.strip()),
        (STARTED + TRACE, TRACE, TRACE),
        (f"{STARTED}{TRACE}\nbye\n", f"{TRACE}\nbye", f"{TRACE}\nbye"),
        (STARTED + "OSError: no space\n", "OSError: no space", "OSError: no space"),
    ],
)
def test_what_went_wrong_is_told_and_not_what_it_said_before(
    tmp_path: Path, log: str, killed: str, other: str
) -> None:
    path = tmp_path / "a.log"
    path.write_text(log)
    assert logs.why(path, is_killed=True) == killed
    assert logs.why(path, is_killed=False) == other


def test_the_oldest_logs_go_and_living_ones_stay(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(5)]
    for age, path in enumerate(paths):
        path.touch()
        os.utime(path, (age, age))
    logs.prune(tmp_path, max_logs=2, keep={paths[0]})
    assert sorted(tmp_path.glob("*.log")) == [paths[0], paths[3], paths[4]]


def test_a_log_that_grew_too_large_is_emptied_under_its_writer(tmp_path: Path) -> None:
    path, small = tmp_path / "a.log", tmp_path / "b.log"
    small.write_text("kept")
    with path.open("ab") as writer:
        for number in range(3):
            writer.write(b"%d" % number * 11)
            writer.flush()
            logs.cut(tmp_path, max_bytes=10)
        writer.write(b"after")
    assert path.read_text() == "after"
    assert logs.older_half(path).read_text() == "2" * 11, "the newest of what was cut"
    assert small.read_text() == "kept"
    logs.prune(tmp_path, max_logs=1, keep={small})
    logs.prune(tmp_path, max_logs=0, keep={small})
    assert sorted(tmp_path.iterdir()) == [small]


def test_a_log_that_cannot_be_cut_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("x" * 11)
    truncate = os.truncate
    refusing = [OSError(errno.EROFS, "Read-only file system")]

    def fail_once(path: Path, nbytes: int) -> None:
        if refusing:
            raise refusing.pop()
        truncate(path, nbytes)

    monkeypatch.setattr(os, "truncate", fail_once)
    logs.cut(tmp_path, max_bytes=10)
    assert sorted(path.stat().st_size for path in tmp_path.glob("*.log")) == [0, 11]

"""The process that takes snapshots, killed at any moment: what it leaves replays."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from plexsvc.scheduler.driver import snapshots
from plexsvc.scheduler.driver.snapshots import Told
from tests.rigs.written_journal import WrittenJournal

PATIENCE_S = 600
KILLS = 12


def begin(written: WrittenJournal) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", snapshots.__name__], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(Told(url=written.url, epoch=1)))
    process.stdin.close()
    return process


def test_whenever_it_is_killed_the_journal_replays(tmp_path: Path) -> None:
    written = WrittenJournal.at(tmp_path)
    written.go_on(cycles=60)
    began = time.monotonic()
    whole = begin(written)
    assert whole.wait(PATIENCE_S) == 0
    took_s = time.monotonic() - began
    chains, count = [written.verdict().chain], len(written.tail().snapshots)
    assert count == 1
    for at in range(KILLS):
        written.go_on(cycles=5)
        process = begin(written)
        try:
            process.wait(took_s * 1.5 * at / KILLS)  # all along, and some live
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
        written.store.cut(max_rows=50)  # and the scheduler is killed between two cuts
        verdict = written.verdict()
        assert verdict.is_identical
        chains.append(verdict.chain)
    assert len(set(chains)) == len(chains)
    last = begin(written)
    assert last.wait(PATIENCE_S) == 0
    while written.store.cut(max_rows=500):
        pass
    assert written.verdict().is_identical
    assert written.first_row() > 1
    written.store.close()

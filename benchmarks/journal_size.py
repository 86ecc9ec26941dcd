"""What a journal that is cut takes, and how long a restart from it does. Prints one JSON line.

    python -m benchmarks.journal_size [--events N] [--before N] [--snapshot-rows N]

A virtual run of 64 jobs that take turns on 32 devices, half of their operations staged, is
journaled in SQLite as the driver does it, with snapshots by a process beside it and cuts between
them. `--before` rows lie in the table before the run begins, as if they had not been cut yet. Then
another process restarts: it reads the last snapshot and the rows behind it, and tells them to the
core. `chain` says that this core went the way of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from sqlalchemy import create_engine, text

from plexsvc.ids import OperationId
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event, OperationSubmitted
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.state import MAX_REMEMBERED_IDS
from plexsvc.scheduler.driver import encoding, journal, snapshots
from plexsvc.scheduler.driver.encoding import Snapshot
from plexsvc.scheduler.driver.freezing import freeze, thaw
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.scheduler.driver.replaying import Replay
from plexsvc.scheduler.driver.snapshots import Told
from plexsvc.sim.virtual_driver import VirtualDriver
from plexsvc.store.opening import open_store
from plexsvc.store.reader import read_journal
from plexsvc.store.rows import JournalRow, SnapshotRow
from tests.unit.sim.test_predict import FakeCosts, loops, nodes

JOBS, DEVICES = 64, 32
BATCH = 256


class Scribe:
    """Writes the journal of a run, and has it cut."""

    def __init__(self, url: str, *, before: int, snapshot_rows: int) -> None:
        self.store = open_store(url, now_us=1)
        self.made = encoding.configured(Limits(), epoch=self.store.epoch)
        self.journal = Journal(self.made)
        self.snapshot_rows = snapshot_rows
        self.operations = self.events = self.written = self.nbytes = 0
        self.snapshot_s: list[float] = []
        self._rows: list[JournalRow] = []
        self._before = before
        if before:
            self._fill(url, before)

    def note(self, event: Event, actions: Sequence[Action]) -> None:
        """Write an event down and what followed from it."""
        self.events += 1
        self.operations += isinstance(event, OperationSubmitted)
        self._add(self.journal.rows([event]))
        self.journal.decided(actions)
        rows = self.journal.last_idx - self._before
        if rows // self.snapshot_rows > len(self.snapshot_s):
            self._snapshot(event.at_us)

    def close(self, at_us: int) -> None:
        """Write what is owed."""
        self._add(self.journal.notes(at_us=at_us))
        self._flush()
        self.store.close()

    def _fill(self, url: str, before: int) -> None:
        """Put rows there that a cut has not come to yet, and a snapshot behind them."""
        engine = create_engine(url)
        body = '{"at_us":1795338126645025,"wpg_id":"wpg-1-1"}'
        with engine.begin() as connection:
            connection.execute(
                text(
                    "with recursive n(i) as (select 1 union all select i + 1 from n where i < :m) "
                    "insert into journal select 1, i, 0, 'WpgForgotten', 1, :body from n"
                ),
                {"m": before, "body": body.ljust(200)},
            )
        engine.dispose()
        self.journal.notes(at_us=0)  # the first row says how the core was made
        self.journal.last_idx = before
        state = msgspec.Raw(freeze(self.made.new_core()))
        first = Snapshot(configured=self.made, idx=before, at_us=0, chain="", state=state)
        self.store.keep_snapshot(
            SnapshotRow(idx=before, at_us=0, version=journal.VERSION, body=encoding.compress(first))
        )

    def _add(self, rows: list[JournalRow]) -> None:
        self.written += len(rows)
        self.nbytes += sum(len(row.body) for row in rows)
        self._rows += rows
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._rows and not self.store.append_now(self._rows, is_synced=False):
            self.store.append(self._rows)
        self._rows = []

    def _snapshot(self, at_us: int) -> None:
        self._add(self.journal.notes(at_us=at_us))
        self._flush()
        began = time.monotonic()
        told = msgspec.json.encode(Told(url=self.store.url, epoch=self.store.epoch))
        subprocess.run([sys.executable, "-m", snapshots.__name__], input=told, check=True)
        self.snapshot_s.append(round(time.monotonic() - began, 2))
        if not self._before:
            while self.store.cut(max_rows=500):
                pass


def restart(source: str) -> dict[str, object]:
    """Return how long it took to know what the scheduler knew, by the parts of it."""
    began = time.monotonic()
    tail = journal.follow(read_journal(source), last=1)
    replay = Replay(tail)
    thawed = time.monotonic()
    events = sum(replay.take(entry) is not None for entry in tail.entries)
    return {
        "restart_s": round(time.monotonic() - began, 2),
        "snapshot_read_s": round(thawed - began, 2),
        "tail_events": events,
        "chain": replay.chain,
        "restart_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        **old_state(replay.core),
    }


def old_state(core: Scheduler) -> dict[str, object]:
    """Return what the largest snapshot takes, in processor time.

    Each job remembers as many operations that are over as it may.
    """
    for job in core.view.jobs.values():
        for _ in range(MAX_REMEMBERED_IDS):
            job.released[OperationId(os.urandom(16))] = True
    began = time.process_time()
    state = freeze(core)
    frozen = time.process_time()
    thaw(msgspec.Raw(state))
    return {
        "old_state_kib": len(zlib.compress(state, level=1)) >> 10,
        "old_freeze_s": round(frozen - began, 2),
        "old_thaw_s": round(time.process_time() - frozen, 2),
    }


def measure(directory: Path, *, events: int, before: int, snapshot_rows: int) -> dict[str, object]:
    path = directory / "plexsvc.db"
    scribe = Scribe(f"sqlite:///{path}", before=before, snapshot_rows=snapshot_rows)
    clients = [nodes(DEVICES)]
    for at, loop in enumerate(loops(JOBS, cycles=events)):
        loop.stages = at % 2 == 0
        clients.append(loop)  # type: ignore[arg-type]
    driver = VirtualDriver(
        core=scribe.made.new_core(),
        costs=FakeCosts(),
        clients=clients,
        watch=scribe.note,
        max_events=events,
    )
    driver.run()
    scribe.close(driver.now_us + 1)
    asked = [sys.executable, "-m", "benchmarks.journal_size", "--restart", str(path)]
    found = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    rows = read_journal(str(path))
    kept = [row.body for row in rows.snapshots]
    first = rows.snapshots[0].idx if rows.snapshots else 0
    return {
        "events": scribe.events,
        "operations": scribe.operations,
        "rows_written": scribe.written,
        "rows_an_operation": round(scribe.written / scribe.operations, 2),
        "bytes_an_operation": round(scribe.nbytes / scribe.operations),
        "rows_a_replay_needs": scribe.journal.last_idx - first,
        "file_mib": round(path.stat().st_size / 2**20, 1),
        "snapshots": len(scribe.snapshot_s),
        "snapshot_s": [min(scribe.snapshot_s), max(scribe.snapshot_s)],
        "snapshot_kib": [len(body) >> 10 for body in kept],
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--snapshot-rows", type=int, default=20_000)
    parser.add_argument("--restart", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restart:
        print(json.dumps(restart(args.restart)))
        return
    with tempfile.TemporaryDirectory() as directory:
        found = measure(
            Path(directory),
            events=args.events,
            before=args.before,
            snapshot_rows=args.snapshot_rows,
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()

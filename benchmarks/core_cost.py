"""Processor time of the scheduler's core and of its journal, an event; no I/O.

    python -m benchmarks.core_cost [JOURNAL.db] [--profile]

Without a journal: a virtual run of 64 jobs on 64 devices of their own, one blocking training loop
each, as `noop_latency` has them. `core_us`: the core's decision. `journal_us`: what the driver
spends on rows, of it `digest_us` on saying what followed.
The best of several passes counts. `--profile` prints the core's costliest functions instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable

from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.store.reader import read_journal
from plexsvc.store.rows import JournalRow
from tests.unit.sim.test_predict import journal_of, loops

JOBS = 64
PASSES = 7


def best_us(work: Callable[[], object], *, events: int) -> float:
    """Return the least processor time of a pass, an event."""
    found = []
    for _ in range(PASSES):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return round(min(found) / events * 1e6, 2)


def measure(recorded: Recording) -> dict[str, float]:
    """Return the costs of one journal's events."""
    events = list(recorded)

    def decide() -> list[object]:
        core = recorded.configured.new_core()
        return [core.handle(event) for event in events]

    core = recorded.configured.new_core()
    followed = [(event, core.handle(event)) for event in events]

    def write() -> None:
        book = Journal(recorded.configured)
        for event, actions in followed:
            book.rows([event])
            book.decided(actions)

    def bare() -> None:
        for event, _ in followed:
            body = encoding.encode(event).decode()
            kind = type(event).__name__
            JournalRow(idx=1, at_us=event.at_us, kind=kind, version=journal.VERSION, body=body)

    count = len(events)
    journal_us = best_us(write, events=count)
    return {
        "events": count,
        "core_us": best_us(decide, events=count),
        "journal_us": journal_us,
        "digest_us": round(journal_us - best_us(bare, events=count), 2),
    }


def profile(recorded: Recording) -> None:
    """Print where the core spends its time."""
    core, profiler = recorded.configured.new_core(), cProfile.Profile()
    profiler.enable()
    for event in recorded:
        core.handle(event)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", nargs="?")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if args.journal is not None:
        recorded = journal.read(read_journal(args.journal).rows)
    else:
        recorded = journal_of(loops(JOBS, cycles=20), devices=JOBS)
    if args.profile:
        profile(recorded)
    else:
        print(json.dumps(measure(recorded)))


if __name__ == "__main__":
    main()

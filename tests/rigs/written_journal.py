"""A store with the journal of a fake world, as a scheduler would have written it."""

from __future__ import annotations

from pathlib import Path

from plexsvc.scheduler.core.vocabulary import OperationKind
from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.encoding import JournalTail
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.sim.replay import ReplayResult, verify
from plexsvc.store.opening import open_store
from plexsvc.store.reader import read_journal
from tests.fakes.fake_world import FakeWorld
from tests.rigs import stored


class WrittenJournal:
    """Two jobs that take turns on a device, and the rows of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url, now_us=1)
        self.world = FakeWorld(epoch=self.store.epoch)
        made = encoding.configured(self.world.limits, epoch=self.store.epoch)
        self.journal = Journal(made)
        self._written = 0
        self._seq = 0
        self.world.join()
        for job in "ab":
            self.world.bring_up(job)

    @classmethod
    def at(cls, directory: Path) -> WrittenJournal:
        """Return one in an SQLite file."""
        return cls(f"sqlite:///{directory}/plex.db")

    @property
    def path(self) -> str:
        """Return the name of the SQLite file."""
        return self.url.removeprefix("sqlite:///")

    def go_on(self, *, cycles: int) -> None:
        """Let the jobs run cycles of two operations, and write down what happened."""
        for _ in range(cycles):
            for kind in (OperationKind.FORWARD_BACKWARD, OperationKind.STEP):
                self._seq += 1
                for job in "ab":
                    self.world.submit(f"{job}{self._seq}", job=job, seq=self._seq, kind=kind)
                self.world.drain()
        for event, actions in self.world.history[self._written :]:
            self.store.append(self.journal.rows([event]))
            self.journal.decided(actions)
        self.store.append(self.journal.notes(at_us=self.world.now_us))
        self._written = len(self.world.history)

    def tail(self) -> JournalTail:
        """Return what the journal still tells."""
        return journal.follow(read_journal(self.url))

    def verdict(self) -> ReplayResult:
        """Return what a replay of what is left finds."""
        return verify(self.tail())

    def first_row(self) -> int:
        """Return the oldest row there is."""
        return next(iter(stored.journal(self.store))).idx

"""Training of a job between its generates: what the seeding window learns from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TrainingSpan:
    """Training from the start of one generate to the start of the next."""

    train_us: int = 0
    """Operations of it were under way, whether they ran or waited for their devices."""
    ended_us: int = 0
    """When the last of it ended; 0: there was none."""


class TrainingMeter:
    """Adds up a job's training; its clock is the caller's.

    >>> training = TrainingMeter()
    >>> training.seeded(until_us=5)
    >>> training.ran(since_us=3, until_us=8)
    >>> training.ran(since_us=4, until_us=9)
    >>> training.generate_began()
    >>> training.before
    TrainingSpan(train_us=4, ended_us=9)
    """

    def __init__(self) -> None:
        self.before = TrainingSpan()
        """Of the generate before the latest."""
        self._now = TrainingSpan()
        self._counted_us = 0
        """Time up to here is counted, or its devices generated."""

    def ran(self, *, since_us: int, until_us: int) -> None:
        """Count an operation from its submission to its end."""
        self._now.train_us += max(0, until_us - max(since_us, self._counted_us))
        self._now.ended_us = until_us
        self.seeded(until_us=until_us)

    def seeded(self, *, until_us: int) -> None:
        """Count nothing before this: the devices generated, or it is counted already."""
        self._counted_us = max(self._counted_us, until_us)

    def generate_began(self) -> None:
        """Begin to add up anew."""
        self.before, self._now = self._now, TrainingSpan()

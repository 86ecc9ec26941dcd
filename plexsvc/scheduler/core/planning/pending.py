"""Which of very many pending operations has the highest response ratio: a table numpy scans.

A stale heap picks wrong, as ratios grow at different rates; a scan of 10,000 rows is
a matter of microseconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np

from plexsvc.ids import JobId

Key = TypeVar("Key", bound=Hashable)

_CLOSE = 1e-12


class PendingTable(Generic[Key]):
    """Pending operations with `(W + S') / S'` at any time; `S'` counts a switch unless resident.

    >>> table: PendingTable[str] = PendingTable()
    >>> table.add("long", job_id=JobId("a"), since_us=0, service_us=100, setup_us=0)
    >>> table.add("short", job_id=JobId("b"), since_us=50, service_us=10, setup_us=5)
    >>> table.pick(now_us=60), table.pick(now_us=90)
    ('short', 'short')
    """

    def __init__(self, capacity: int = 64) -> None:
        self._keys: list[Key] = []
        self._jobs: list[JobId] = []
        self._rows: dict[Key, int] = {}
        self._of_job: dict[JobId, dict[Key, None]] = {}
        self._resident: JobId | None = None
        self._since = np.zeros(capacity, dtype=np.int64)
        self._service = np.zeros(capacity, dtype=np.int64)
        self._setup = np.zeros(capacity, dtype=np.int64)
        self._effective = np.ones(capacity, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._keys)

    def add(
        self, key: Key, *, job_id: JobId, since_us: int, service_us: int, setup_us: int
    ) -> None:
        """Add an operation. `O(1)` amortised."""
        assert key not in self._rows, key
        row = len(self._keys)
        if row == self._since.size:
            self._grow()
        self._keys.append(key)
        self._jobs.append(job_id)
        self._rows[key] = row
        self._of_job.setdefault(job_id, {})[key] = None
        self._since[row], self._service[row], self._setup[row] = since_us, service_us, setup_us
        self._set_effective(row)

    def remove(self, key: Key) -> None:
        """Remove an operation; the last row takes its place. `O(1)`."""
        row = self._rows.pop(key)
        of_job = self._of_job[self._jobs[row]]
        del of_job[key]
        if not of_job:
            del self._of_job[self._jobs[row]]
        last = len(self._keys) - 1
        if row != last:
            self._keys[row], self._jobs[row] = self._keys[last], self._jobs[last]
            self._rows[self._keys[row]] = row
            for column in (self._since, self._service, self._setup):
                column[row] = column[last]
            self._effective[row] = self._effective[last]
        self._keys.pop()
        self._jobs.pop()

    def set_resident(self, job_id: JobId | None) -> None:
        """Say whose state is on the devices. `O(operations of the two jobs)`."""
        before, self._resident = self._resident, job_id
        for changed in (before, job_id):
            if changed is not None:
                for key in self._of_job.get(changed, ()):
                    self._set_effective(self._rows[key])

    def pick(self, *, now_us: int) -> Key:
        """Return the operation of highest ratio, exactly; ties by longer wait. `O(n)`, vectorised.

        There must be one.
        """
        size = len(self._keys)
        assert size, "nothing is pending"
        ratios = (now_us - self._since[:size]) / self._effective[:size]
        best = int(ratios.argmax())
        close = np.flatnonzero(ratios >= ratios[best] * (1 - _CLOSE))
        for other in close.tolist():
            best = self._better(best, other, now_us)
        return self._keys[best]

    def _better(self, best: int, other: int, now_us: int) -> int:
        left = (now_us - int(self._since[other])) * int(self._effective[best])
        right = (now_us - int(self._since[best])) * int(self._effective[other])
        is_older = self._since[other] < self._since[best]
        return other if left > right or (left == right and bool(is_older)) else best

    def _set_effective(self, row: int) -> None:
        setup = 0 if self._jobs[row] == self._resident else int(self._setup[row])
        self._effective[row] = max(1, int(self._service[row]) + setup)

    def _grow(self) -> None:
        for name in ("_since", "_service", "_setup", "_effective"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.ones_like(column))))

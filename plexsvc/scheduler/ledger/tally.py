"""Context switches by job: counted from the timeline, which forgets its oldest spans."""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import JobId
from plexsvc.scheduler.core.timeline import Timeline

_BATCH = 20_000


@dataclass(slots=True, kw_only=True)
class JobTally:
    """What moving a job's state took: `switches` are loads, a device each."""

    switches: int = 0
    switch_us: int = 0


class Tally:
    """Counts spans since it began; call `take` often enough that none is dropped uncounted."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._seen = 0
        self._jobs: dict[JobId, JobTally] = {}

    def of(self, job_id: JobId) -> JobTally:
        """Return a job's tally up to now."""
        self.take()
        return self._jobs.get(job_id, JobTally())

    def forget(self, keep: set[JobId]) -> None:
        """Drop the tallies of jobs that nobody knows any more."""
        for job_id in self._jobs.keys() - keep:
            del self._jobs[job_id]

    def take(self) -> None:
        """Count the spans that are new. `O(new spans)`."""
        while spans := self._timeline.after(self._seen, limit=_BATCH):
            self._seen = spans[-1].number
            for _, _, span in spans:
                if span.operation_id is None:
                    tally = self._jobs.setdefault(span.job_id, JobTally())
                    tally.switches += span.kind == "load"
                    tally.switch_us += span.end_us - span.start_us

"""Sessions: a job is cancelled when its client was silent for its time to live."""

from __future__ import annotations

import asyncio
from typing import Final

from plexsvc.clock import Clock, wait_at_most
from plexsvc.errors import bad_request
from plexsvc.ids import JobId
from plexsvc.log import Log
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import JobEndRequested, Post
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.ledger.jobs import JobRecord, Registry

log = Log(__name__)

MISSED: Final = 4
"""Keepalives that did not come from a client that is taken for dead by who resumes its job."""
UNKNOWN_US: Final = 5_000_000
"""How long a client that did not say when it is heard again must be silent for that."""


class Sessions:
    """Watches when each job's client was last heard."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        clock: Clock,
        registry: Registry,
        post: Post,
    ) -> None:
        self._config = config
        self._clock = clock
        self._registry = registry
        self._post = post
        self._opened = asyncio.Event()
        self._seen_us: dict[JobId, int] = {}
        """When clients were last heard, on the monotonic clock."""
        self._silence_us: dict[JobId, int] = {}
        """For how long a client that lives is silent at most."""
        self._expired: set[JobId] = set()

    def ttl_us(self, asked_us: int) -> int:
        """Return the time to live a job gets: what it asked for, within the bound."""
        return min(asked_us or self._config.session_ttl_us, self._config.max_session_ttl_us)

    def opened(self, record: JobRecord) -> None:
        """Watch a new job: it may be the next to expire."""
        self.heard(record)
        self._opened.set()

    def heard(self, record: JobRecord, *, period_us: int = 0) -> None:
        """Note that a job's client lives, and is heard again after a period; 0: it did not say."""
        self._seen_us[record.job_id] = self._clock.monotonic_us()
        self._silence_us[record.job_id] = min(
            MISSED * period_us or UNKNOWN_US, record.session_ttl_us // 2
        )

    async def check_silent(self, record: JobRecord) -> None:
        """Return once a job's client has missed what it should have sent.

        Raises:
            PlexError: `bad_request` when it is heard: it lives.
        """
        seen_us = self._seen_us.get(record.job_id, 0)
        silence_us = self._silence_us.get(record.job_id, UNKNOWN_US)
        left_us = seen_us + silence_us - self._clock.monotonic_us()
        if left_us > 0:
            await self._clock.sleep(left_us)
        if self._seen_us.get(record.job_id, 0) != seen_us:
            raise bad_request(
                f"job {record.name!r} ({record.job_id}) still runs: its controller was heard just "
                f"now. End it (`plexctl job cancel {record.job_id}`), or give another name"
            )

    def has_expired(self, record: JobRecord) -> bool:
        """Return whether a job is ended because its client was silent."""
        return record.job_id in self._expired

    async def run(self) -> None:
        """Expire silent sessions until cancelled; sleeps until the next could expire."""
        while True:
            self._opened.clear()
            next_us = self._expire()
            if next_us is None:
                await self._opened.wait()
            else:
                await wait_at_most(self._opened, next_us, clock=self._clock)

    def _expire(self) -> int | None:
        """End what has been silent too long; return the time until the next could be."""
        now_us = self._clock.monotonic_us()
        live = {record.job_id: record for record in self._registry.live_jobs()}
        # Clients of a former scheduler have as long as if they had just been heard.
        self._seen_us = {job_id: self._seen_us.get(job_id, now_us) for job_id in live}
        self._silence_us = {job_id: us for job_id, us in self._silence_us.items() if job_id in live}
        self._expired &= live.keys()
        remaining = []
        for job_id, record in live.items():
            if job_id in self._expired:
                continue
            seen_us = self._seen_us[job_id]
            left_us = seen_us + record.session_ttl_us - now_us
            if left_us <= 0:
                self._expired.add(record.job_id)
                ttl_s = record.session_ttl_us / 1e6
                log.warning("session expired", job=record.job_id, silent_us=now_us - seen_us)
                self._post(
                    JobEndRequested(
                        job_id=record.job_id,
                        outcome=JobState.CANCELLED,
                        reason=f"session expired: no KeepAlive for {ttl_s:g} s (session_ttl_us)",
                    )
                )
            else:
                remaining.append(left_us)
        return min(remaining, default=None)

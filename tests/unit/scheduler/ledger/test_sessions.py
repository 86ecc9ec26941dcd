"""Sessions: who is silent loses its job, and nobody whom the service could not hear."""

from __future__ import annotations

from plexsvc.clock import TICK_US, ServiceClock
from plexsvc.ids import JobId, TenantId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import Event, JobEndRequested
from plexsvc.scheduler.ledger.jobs import JobRecord, Registry
from plexsvc.scheduler.ledger.sessions import Sessions
from tests.fakes.fake_clock import FakeClock, beside

TTL_US = 15_000_000


async def test_a_stopped_service_hears_its_clients_before_it_ends_their_sessions() -> None:
    machine, posted = FakeClock(), list[Event]()
    clock, config = ServiceClock(machine, on_gap=lambda _: None), SchedulerConfig()
    registry = Registry(config)
    sessions = Sessions(config, clock=clock, registry=registry, post=posted.append)
    record = JobRecord(
        job_id=JobId("j"),
        tenant=TenantId("t"),
        name="j",
        labels={},
        created_us=0,
        session_ttl_us=TTL_US,
    )
    registry.jobs[record.job_id] = record
    async with beside(clock.run, sessions.run):
        sessions.opened(record)
        await machine.passes_in_steps(TTL_US // 3, step_us=TICK_US)
        await machine.passes(2 * TTL_US)
        assert posted == []
        await machine.passes_in_steps(TTL_US // 3, step_us=TICK_US)
        assert posted == []
        await machine.passes_in_steps(TTL_US // 2, step_us=TICK_US)
        (ended,) = posted
        assert isinstance(ended, JobEndRequested)

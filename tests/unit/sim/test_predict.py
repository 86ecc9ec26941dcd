"""Prediction: programs read from a journal, costs fitted to a part of it, wall time that agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, TenantId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import (
    Action,
)
from plexsvc.scheduler.core.events import (
    Acknowledged,
    DeploymentRequested,
    Event,
    JobEndRequested,
    JobSubmitted,
    NodeJoined,
    OperationSubmitted,
    PayloadStaged,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import (
    DeviceFacts,
    Fault,
    JobState,
    OperationKind,
    Place,
)
from plexsvc.scheduler.driver import encoding
from plexsvc.sim.clients import Alarm, Client, Outside, Post, Posts, Reply, What
from plexsvc.sim.costs import Moved, Spawned, Took, Work
from plexsvc.sim.fitted_costs import fit
from plexsvc.sim.observed import observe
from plexsvc.sim.predict import Prediction, predict
from plexsvc.sim.programs import program_of
from plexsvc.sim.replay import verify
from plexsvc.sim.virtual_driver import VirtualDriver

MS = 1_000
KINDS = {
    OperationKind.FORWARD_BACKWARD: 40 * MS,
    OperationKind.STEP: 10 * MS,
    OperationKind.INITIALIZE: 100 * MS,
}


@dataclass(slots=True)
class FakeCosts:
    """Known costs: each operation as its kind, in steps of noise that average out."""

    noise: Sequence[int] = (0,)
    calls: int = 0
    faults: dict[OperationId, Fault] = field(default_factory=dict)

    def spawn(
        self,
        deployment_id: DeploymentId,
        *,
        places: Sequence[Place],
        now_us: int,
    ) -> Spawned:
        return Spawned(ready_us=now_us + 500 * MS, device_bytes=(60,) * len(places))

    def operation(self, work: Work) -> Took:
        self.calls += 1
        noise_us = self.noise[self.calls % len(self.noise)]
        elapsed_us = KINDS[work.kind] + noise_us + work.num_tokens
        return Took(
            elapsed_us=elapsed_us, run_us=elapsed_us, fault=self.faults.get(work.operation_id)
        )

    def move(self, deployment_id: DeploymentId, *, to: Residency | None) -> Moved:
        took_us = {None: 12 * MS, Residency.DEVICE: 8 * MS, Residency.HOST: 5 * MS}
        return Moved(elapsed_us=took_us[to], nbytes=60)

    def stop_us(self) -> int:
        return 30 * MS

    def forget_us(self) -> int:
        return 2 * MS


@dataclass(slots=True, kw_only=True)
class FakeLoop(Client):
    """A loop: waits for its tools, then `passes` operations and a step, blocking or pipelined."""

    name: str
    cycles: int = 10
    gap_us: int = 100 * MS
    start_us: int = 1_000
    passes: int = 2
    pipelines: bool = False
    stages: bool = False
    seq: int = 0
    cycle: int = 0
    open: int = 0
    is_over: bool = False

    @property
    def is_done(self) -> bool:
        return self.is_over

    def begin(self) -> Posts:
        job_id = JobId(self.name)
        return (Post(self.start_us, JobSubmitted(job_id=job_id, tenant=TenantId("t"))),)

    def happened(self, event: Event, *, tag: int) -> Posts:
        if isinstance(event, OperationSubmitted) and not event.is_staged:
            staged = PayloadStaged(operation_id=event.operation_id)
            return (Post(event.at_us + 3 * MS, staged),)
        if not isinstance(event, JobSubmitted):
            return ()
        request = DeploymentRequested(
            deployment_id=DeploymentId(f"{self.name}/actor"),
            job_id=event.job_id,
            initialize_id=OperationId(f"{self.name:>14}/0".encode()),
            role="actor",
            backend="fake",
            device_kind="train",
            num_devices=1,
            is_rollout=False,
        )
        return (Post(event.at_us + 2 * MS, request),)

    def told(self, answer: Reply, *, now_us: int) -> Posts:
        match answer:
            case Reply(what=What.READY, is_placed=True) if not self.seq:
                return (Alarm(now_us + self.gap_us),)
            case Reply(what=What.ANSWERED):
                self.open -= 1
                return () if self.open else self._next(now_us)
            case Reply(what=What.ENDED):
                self.is_over = True
            case _:
                pass
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:
        return self._next(now_us)

    def _next(self, now_us: int) -> Posts:
        at = self.seq % (self.passes + 1)
        if self.seq and at == 0 and self.cycle < self.seq // (self.passes + 1):
            self.cycle += 1
            ack = Post(
                now_us + MS,
                Acknowledged(deployment_id=DeploymentId(f"{self.name}/actor"), seq=self.seq),
            )
            if self.cycle == self.cycles:
                end = JobEndRequested(
                    job_id=JobId(self.name), outcome=JobState.COMPLETED, reason=""
                )
                return (ack, Post(now_us + MS, end))
            return (ack, Alarm(now_us + self.gap_us))
        count = self.passes + 1 if self.pipelines else 1
        self.open = count
        return [self._operation(now_us + MS + extra) for extra in range(count)]

    def _operation(self, at_us: int) -> Post:
        self.seq += 1
        is_step = self.seq % (self.passes + 1) == 0
        return Post(
            at_us,
            OperationSubmitted(
                operation_id=OperationId(f"{self.name:>12}/{self.seq:03}".encode()),
                job_id=JobId(self.name),
                deployment_id=DeploymentId(f"{self.name}/actor"),
                seq=self.seq,
                kind=OperationKind.STEP if is_step else OperationKind.FORWARD_BACKWARD,
                after=(),
                is_staged=not self.stages,
                num_tokens=0,
            ),
        )


def nodes(count: int) -> Outside:
    device = DeviceFacts(index=0, kind="train", bytes_total=100)
    joined = [
        NodeJoined(at_us=1, node_id=NodeId(f"n{at}"), devices=(device,), host_bytes=10**9)
        for at in range(count)
    ]
    return Outside(events=joined)


def journal_of(
    jobs: Sequence[Client], *, devices: int = 1, costs: FakeCosts | None = None
) -> encoding.Recording:
    """Return what a live run of these jobs would have journaled."""
    made = encoding.configured(Limits(), epoch=1)
    entries: list[encoding.JournalEntry] = []

    def note(event: Event, actions: Sequence[Action]) -> None:
        body = encoding.encode(event)
        encoded = encoding.encode_actions(actions)
        entries.append(
            encoding.JournalEntry(
                idx=len(entries) + 2,
                event=event,
                body=body.decode(),
                digest=encoding.digest(body, encoded),
            )
        )

    driver = VirtualDriver(
        core=made.new_core(),
        costs=costs or FakeCosts(),
        clients=[nodes(devices), *jobs],
        watch=note,
    )
    assert driver.run()
    return encoding.Recording(configured=made, entries=tuple(entries))


def loops(count: int, **more: object) -> list[FakeLoop]:
    return [
        FakeLoop(name=f"job-{at}", gap_us=(100 + 17 * at) * MS, **more)  # type: ignore[arg-type] # passed on
        for at in range(count)
    ]


def errors(found: Prediction) -> list[float]:
    return [abs(found.run.error), *(abs(wall.error) for wall in found.jobs.values())]


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("pipelines", [False, True])
@pytest.mark.parametrize("devices", [1, 3])
def test_a_run_with_steady_costs_is_predicted_to_the_event(
    devices: int, pipelines: bool, stages: bool
) -> None:
    recorded = journal_of(loops(4, pipelines=pipelines, stages=stages), devices=devices)
    assert verify(recorded).is_identical
    found = predict(recorded)
    assert found.is_complete
    assert max(errors(found)) < 1e-4
    assert (found.predicted_moves, found.events) == (found.moves, 5 * len(recorded.entries))


@pytest.mark.parametrize("pipelines", [False, True])
def test_a_noisy_run_is_predicted_within_five_percent_from_its_first_half(pipelines: bool) -> None:
    noise = np.random.default_rng(7).gamma(2, 7 * MS, 1009).astype(int)
    costs = FakeCosts(noise=[int(us) for us in noise])
    recorded = journal_of(loops(5, cycles=40, pipelines=pipelines), devices=2, costs=costs)
    found = predict(recorded, share=0.5)
    assert found.is_complete
    assert abs(found.run.error) < 0.05


def test_a_prediction_is_no_copy_of_what_came_later() -> None:
    """A run whose second half is slower is predicted as if it had gone on as it began."""
    slow = [0] * 40 + [60 * MS] * 1000
    recorded = journal_of(loops(1, cycles=26), costs=FakeCosts(noise=slow))
    assert predict(recorded, share=0.4).run.error < -0.1


def test_a_failed_operation_fails_again_and_the_rest_goes_on() -> None:
    fault = Fault(code=ErrorCode.BAD_BATCH, message="no")
    broken = OperationId(f"{'job-0':>12}/{5:03}".encode())
    recorded = journal_of(loops(2), costs=FakeCosts(faults={broken: fault}))
    found = predict(recorded)
    assert found.is_complete
    assert max(errors(found)) < 0.01


def test_a_post_waits_for_the_answers_since_the_one_before() -> None:
    recorded = journal_of(loops(1, cycles=2))
    (moments,) = observe(recorded).jobs.values()
    steps = program_of(moments)
    posts = [step for step in steps if isinstance(step.event, OperationSubmitted)]
    assert [sorted(key.what for key in step.after) for step in posts[:2]] == [
        [What.READY, What.SENT],
        [What.ANSWERED, What.SENT],
    ]
    assert [round(step.think_us / MS) for step in posts[:4]] == [101, 1, 1, 101]


def test_a_refused_operation_is_submitted_again_by_the_program() -> None:
    recorded = journal_of(loops(2, pipelines=True, passes=5))
    tight = replace(recorded.configured, limits=Limits(max_pending_per_wpg=2))
    found = predict(replace(recorded, configured=tight))
    assert found.is_complete


@pytest.mark.parametrize(
    ("sizes", "costs", "at", "expected"),
    [
        ([1] * 8, [5, 7, 5, 7, 5, 7, 5, 7], 50, 6),
        (range(10), range(100, 200, 10), 20, 300),
        (range(10), range(200, 100, -10), 20, 155),
        (range(10), range(100, 200, 10), -90, 50),
    ],
    ids=["no-size", "line", "falling-is-mean", "never-below-half-the-least"],
)
def test_a_cost_is_a_line_where_sizes_explain_it(
    sizes: Sequence[int], costs: Sequence[int], at: int, expected: int
) -> None:
    assert fit(list(sizes), list(costs)).at(at) == expected

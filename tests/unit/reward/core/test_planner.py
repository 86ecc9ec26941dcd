"""Core of the planner: pools by what stages ask for, and what is known of jobs."""

from __future__ import annotations

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.planner import (
    MAX_SAMPLES,
    ActiveBatch,
    Aims,
    HistoryKey,
    PlanFacts,
    PlannerCore,
    lasts_us,
)
from plexsvc.reward.core.planning import History, UnderWay
from plexsvc.reward.core.vocabulary import LEAST, PoolPlan, ProgramSpec, Resource, StageSpec

S = 1_000_000
GPU = Resource(cpus=0, memory_bytes=0, gpus=1)
PROGRAM = ProgramSpec(
    name="kernel",
    stages=(
        StageSpec(name="compile", timeout_us=20 * S),
        StageSpec(name="run", timeout_us=5 * S, resource=GPU),
    ),
)
SHORT = ProgramSpec(name="exact", stages=(StageSpec(name="compare", timeout_us=S),))
ALL_AT_ONCE = History(samples=[(0, (10 * S, 2 * S))] * 4)


def key_of(tenant: str, program: ProgramSpec = PROGRAM) -> HistoryKey:
    return (TenantId(tenant), JobId("j"), program.name)


def active(tenant: str, program: ProgramSpec = PROGRAM, **state: object) -> ActiveBatch:
    found = UnderWay(begun_us=0, size=4, **state)  # type: ignore[arg-type]
    return ActiveBatch(key=key_of(tenant, program), program=program, state=found)


def facts(*batches: ActiveBatch, most: int = 100) -> PlanFacts:
    return PlanFacts(now_us=0, batches=batches, most=[(LEAST, most), (GPU, most)])


def test_each_resource_type_has_a_plan_of_its_own() -> None:
    core = PlannerCore(Aims(held_us=S))
    core.remember(key_of("a"), ALL_AT_ONCE)
    assert core.plan(facts(active("a"))) == {
        LEAST: PoolPlan(workers=4, held=4),
        GPU: PoolPlan(workers=4, held=0),
    }


def test_pools_of_a_batch_of_which_nothing_is_known_are_not_planned() -> None:
    core = PlannerCore(Aims())
    core.remember(key_of("a"), ALL_AT_ONCE)
    assert set(core.plan(facts(active("a"), active("b", SHORT)))) == {GPU}
    assert core.plan(facts(active("b", SHORT))) == {}


def test_a_plan_that_no_number_of_workers_meets_says_so() -> None:
    core = PlannerCore(Aims())
    core.remember(key_of("a"), ALL_AT_ONCE)
    found = core.plan(facts(active("a"), most=3))
    assert {plan.is_met for plan in found.values()} == {False}
    assert found[LEAST].workers == 3


def test_what_runs_longer_than_anything_known_holds_its_worker() -> None:
    core = PlannerCore(Aims())
    core.remember(key_of("a"), ALL_AT_ONCE)
    stuck = active("a", arrived=4, running=[(0, 0, 15 * S)] * 2)
    assert core.plan(facts(stuck))[LEAST] == PoolPlan(workers=3, held=2)


def test_of_a_large_batch_every_so_many_samples_are_remembered() -> None:
    core = PlannerCore(Aims())
    core.remember(key_of("a"), History(samples=[(at, (1, 1)) for at in range(2 * MAX_SAMPLES)]))
    kept = core.histories[key_of("a")].samples
    assert len(kept) == MAX_SAMPLES
    assert kept[-1][0] >= 2 * MAX_SAMPLES - 2


def test_a_history_lasts_until_its_last_sample_would_end() -> None:
    assert lasts_us(History(samples=[(0, (9, 0)), (5, (3, 2))])) == 10

"""Queue of a pool: order, shares of tenants, and no starvation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.queues import PoolQueue, Urgency
from plexsvc.reward.core.vocabulary import BatchId, RequestId


def request(tenant: str, batch: str, sample: int = 0) -> RequestId:
    return RequestId(BatchId(TenantId(tenant), JobId("job"), batch.encode()), sample)


def test_the_batch_that_was_expected_to_end_first_runs_first() -> None:
    queue = PoolQueue()
    queue.put(request("a", "late"), Urgency(900, 1))
    queue.put(request("b", "soon"), Urgency(100, 2))
    assert queue.take(workers=1) == request("b", "soon")
    assert queue.take(workers=1) == request("a", "late")
    assert queue.take(workers=1) is None


def test_samples_of_a_batch_run_as_they_came() -> None:
    queue = PoolQueue()
    for number, sample in enumerate((7, 3, 5)):
        queue.put(request("a", "one", sample), Urgency(100, number))
    assert [queue.take(workers=1).sample for _ in range(3)] == [7, 3, 5]


def test_a_tenant_with_its_share_of_the_workers_lets_another_go_first() -> None:
    queue = PoolQueue()
    queue.running.update({TenantId("greedy"): 2})
    queue.put(request("greedy", "urgent"), Urgency(1, 1))
    queue.put(request("modest", "patient"), Urgency(1000, 2))
    assert queue.take(workers=4) == request("modest", "patient")
    assert queue.take(workers=4) == request("greedy", "urgent"), "no worker stands idle"


def test_at_equal_urgency_the_tenant_that_runs_less_goes_first() -> None:
    queue = PoolQueue()
    queue.running.update({TenantId("busy"): 1})
    queue.put(request("busy", "x"), Urgency(100, 1))
    queue.put(request("idle", "y"), Urgency(100, 2))
    assert queue.take(workers=8) == request("idle", "y")


def test_a_dropped_request_may_come_again() -> None:
    queue = PoolQueue()
    queue.put(request("a", "one"), Urgency(100, 1))
    queue.drop(request("a", "one"))
    assert len(queue) == 0
    queue.put(request("a", "one"), Urgency(50, 2))
    assert queue.take(workers=1) == request("a", "one")
    assert queue.take(workers=1) is None


REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), min_size=1, max_size=40)


@given(REQUESTS)
def test_one_tenants_requests_leave_in_the_order_of_their_urgency(
    made: list[tuple[str, int]],
) -> None:
    queue, urgencies = PoolQueue(), {}
    for number, (tenant, expected_us) in enumerate(made):
        found = request(tenant, "batch", number)
        urgencies[found] = Urgency(expected_us, number)
        queue.put(found, urgencies[found])
    taken = [left for _ in made if (left := queue.take(workers=3)) is not None]
    assert set(taken) == set(urgencies)
    for tenant in "abc":
        own = [urgencies[found] for found in taken if found.batch.tenant == tenant]
        assert own == sorted(own)


@given(st.integers(1, 30), st.integers(1, 5))
def test_nothing_starves_behind_batches_that_keep_coming(patience: int, lasts: int) -> None:
    """A batch expected to end at `patience` waits for no batch that comes after that time."""
    queue = PoolQueue()
    queue.put(request("patient", "old"), Urgency(patience, 0))
    for now in range(patience + 2):
        queue.put(request("eager", str(now)), Urgency(now + lasts, now + 1))
        if queue.take(workers=1) == request("patient", "old"):
            return
    raise AssertionError("it still waits")

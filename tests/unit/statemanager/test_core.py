"""The ledger: budgets, transitions, fences; raced against random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, WpgId
from plexsvc.residency import Residency
from plexsvc.statemanager.core import Ledger
from plexsvc.statemanager.entries import RegionState
from plexsvc.weights.checksums import BLOCK_BYTES

A, B = WpgId("a"), WpgId("b")
JOB = JobId("job")


def ledger(**changes: Any) -> Ledger:
    return Ledger(**{"devices": {0: 100, 1: 100}, "host_bytes": 300, "max_wpgs": 8, **changes})


def region(name: str, nbytes: int, *, is_droppable: bool = False) -> RegionState:
    return RegionState(name=name, nbytes=nbytes, is_droppable=is_droppable)


def register(books: Ledger, wpg_id: WpgId, rank: int = 0, **changes: Any) -> None:
    given = {"incarnation": 1, "device_index": rank, "job_id": JOB, **changes}
    books.register(wpg_id, rank=rank, **given)


def refusal(call: Any, *args: Any, **kwargs: Any) -> PlexError:
    with pytest.raises(PlexError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_an_allocation_takes_device_and_host_or_neither() -> None:
    books = ledger(host_bytes=90)
    register(books, A)
    error = refusal(books.allocate, A, 0, [region("p", 60), region("m", 35)])
    assert (error.code, error.retryable) == (ErrorCode.NO_PLACEMENT, False), "no wait cures it"
    assert error.facts == {"tier": "host", "need": "95", "total": "90"}
    assert (books.devices[0].used, books.host.used) == (0, 0)
    books.allocate(A, 0, [region("p", 60), region("m", 30)])
    assert (books.devices[0].used, books.host.used) == (90, 90)
    assert books.find(A).residency is Residency.DEVICE


def test_host_memory_that_others_can_spare_is_taken_back_before_the_disk_is_used() -> None:
    books = ledger(devices={0: 4 * BLOCK_BYTES}, host_bytes=4 * BLOCK_BYTES, disk_bytes=BLOCK_BYTES)
    books.host.take(3 * BLOCK_BYTES)
    books.host.spares.append(books.host.give)
    register(books, A)
    books.allocate(A, 0, [region("p", 4 * BLOCK_BYTES)])
    assert (books.host.used, books.disk.used) == (4 * BLOCK_BYTES, 0)


def test_second_wpg_loads_only_when_the_first_is_off_the_device() -> None:
    books = ledger()
    register(books, A)
    books.allocate(A, 0, [region("p", 60)])
    assert books.begin_move(A, Residency.HOST, lease_no=1)
    books.finish_move(A, is_done=True)
    register(books, B)
    books.allocate(B, 0, [region("p", 60)])
    error = refusal(books.begin_move, A, Residency.DEVICE, lease_no=2)
    assert (error.code, error.facts["need"], error.facts["free"]) == ("no_room", "60", "40")
    assert books.find(A).residency is Residency.HOST
    assert books.find(A).lease_no == 1
    books.begin_move(B, Residency.HOST, lease_no=3)
    books.finish_move(B, is_done=True)
    assert books.begin_move(A, Residency.DEVICE, lease_no=4)


def test_a_load_that_fits_on_one_device_only_takes_nothing() -> None:
    books = ledger()
    for rank in (0, 1):
        register(books, A, rank)
        books.allocate(A, rank, [region("p", 60)])
    books.begin_move(A, Residency.HOST, lease_no=1)
    books.finish_move(A, is_done=True)
    register(books, B, 1)
    books.allocate(B, 1, [region("p", 60)])
    assert refusal(books.begin_move, A, Residency.DEVICE, lease_no=2).facts["tier"] == "device 1"
    assert books.devices[0].used == 0


def test_failed_moves_return_to_where_they_came_from() -> None:
    books = ledger()
    register(books, A)
    books.allocate(A, 0, [region("p", 60)])
    books.begin_move(A, Residency.HOST, lease_no=1)
    assert books.finish_move(A, is_done=False) is Residency.DEVICE
    assert books.devices[0].used == 60
    books.begin_move(A, Residency.HOST, lease_no=1)
    assert books.finish_move(A, is_done=True) is Residency.HOST
    books.begin_move(A, Residency.DEVICE, lease_no=1)
    assert books.finish_move(A, is_done=False) is Residency.HOST
    assert books.devices[0].used == 0


def test_a_move_to_where_it_is_does_nothing() -> None:
    books = ledger()
    register(books, A)
    books.allocate(A, 0, [region("p", 60)])
    assert not books.begin_move(A, Residency.DEVICE, lease_no=1)


def test_only_clean_droppable_regions_are_dropped() -> None:
    books = ledger()
    register(books, A)
    regions = [region("p", 10), region("g", 20, is_droppable=True)]
    books.allocate(A, 0, [*regions, region("h", 30, is_droppable=True)])
    books.note_offload(A, dirty={0: frozenset({"h"})})
    found = books.find(A).ranks[0].regions
    copied = {name: state.has_host_copy for name, state in found.items()}
    assert copied == {"p": True, "g": False, "h": True}
    assert books.find(A).switch_bytes == 40


@pytest.mark.parametrize(
    "older", [{"scheduler_epoch": 4}, {"incarnation": 2}], ids=["epoch", "incarnation"]
)
def test_commands_older_than_seen_are_refused(older: dict[str, int]) -> None:
    books = ledger()
    register(books, A, incarnation=3)
    newest = {"scheduler_epoch": 5, "lease_no": 1, "incarnation": 3}
    books.check_fence(common_pb2.Fence(**newest), wpg_id=A)
    error = refusal(books.check_fence, common_pb2.Fence(**{**newest, **older}), wpg_id=A)
    assert error.code is ErrorCode.STALE_FENCE
    assert error.facts["number"] == next(iter(older))


def test_an_older_lease_cannot_move_a_wpg() -> None:
    books = ledger()
    register(books, A)
    books.begin_move(A, Residency.DEVICE, lease_no=7)
    books.finish_move(A, is_done=True)
    assert refusal(books.begin_move, A, Residency.HOST, lease_no=6).code == "stale_fence"


def test_an_incarnation_stays_refused_after_its_wpg_was_forgotten() -> None:
    books = ledger()
    register(books, A, incarnation=4)
    books.free_rank(A, 0)
    books.forget(A)
    assert refusal(register, books, A, incarnation=3).code == "stale_fence"
    register(books, A, incarnation=4)


def test_a_newer_incarnation_supersedes_the_ranks_of_the_older() -> None:
    books = ledger()
    register(books, A)
    books.allocate(A, 0, [region("p", 60)])
    assert books.superseded(A, incarnation=1) == ()
    assert books.superseded(A, incarnation=2) == (0,)
    assert books.free_rank(A, 0) == 60
    register(books, A, incarnation=2)
    assert books.find(A).residency is Residency.NONE


def test_a_wpg_that_lost_a_rank_with_state_says_which_until_rebuilt() -> None:
    books = ledger()
    for rank in (0, 1):
        register(books, A, rank)
        books.allocate(A, rank, [region("p", 10)])
    books.free_rank(A, 1)
    error = refusal(books.find, A)
    assert (error.code, error.facts["worker"]) == ("worker_died", "a/1")
    books.free_rank(A, 0)
    assert refusal(books.find, A).code == "worker_died"
    register(books, A, incarnation=2)
    assert books.find(A).lost == set()


def test_a_parked_wpg_cannot_allocate() -> None:
    books = ledger()
    register(books, A)
    books.begin_move(A, Residency.HOST, lease_no=1)
    books.finish_move(A, is_done=True)
    assert refusal(books.allocate, A, 0, [region("p", 1)]).code == "bad_request"


def test_registrations_that_contradict_the_node_are_refused() -> None:
    books = ledger(max_wpgs=1)
    register(books, A)
    assert "connected already" in refusal(register, books, A).message
    assert "device 9" in refusal(register, books, A, 1, device_index=9).message
    assert "max_wpgs" in refusal(register, books, B).message
    assert "connected already" in refusal(register, books, A, 1, job_id=JobId("x")).message


class LedgerMachine(RuleBasedStateMachine):
    """Any history keeps `used` equal to what is held, and never above `total`."""

    def __init__(self) -> None:
        super().__init__()
        self.books = ledger()
        self.moving: set[WpgId] = set()

    @rule(wpg=st.sampled_from([A, B]), rank=st.integers(0, 1), incarnation=st.integers(1, 3))
    def connect(self, wpg: WpgId, rank: int, incarnation: int) -> None:
        if wpg not in self.moving:
            for old in self.books.superseded(wpg, incarnation=incarnation):
                self.books.free_rank(wpg, old)
            self.attempt(register, self.books, wpg, rank, incarnation=incarnation)

    @rule(wpg=st.sampled_from([A, B]), rank=st.integers(0, 1), nbytes=st.integers(1, 80))
    def allocate(self, wpg: WpgId, rank: int, nbytes: int) -> None:
        state = self.books.wpgs.get(wpg)
        if state is not None and rank in state.ranks:
            self.attempt(self.books.allocate, wpg, rank, [region(f"r{nbytes}", nbytes)])

    @rule(
        wpg=st.sampled_from([A, B]),
        to=st.sampled_from([Residency.HOST, Residency.DEVICE]),
        lease=st.integers(0, 5),
    )
    def begin(self, wpg: WpgId, to: Residency, lease: int) -> None:
        if wpg not in self.moving and self.attempt(self.books.begin_move, wpg, to, lease_no=lease):
            self.moving.add(wpg)

    @rule(is_done=st.booleans())
    def finish(self, is_done: bool) -> None:
        for wpg in sorted(self.moving):
            self.books.finish_move(wpg, is_done=is_done)
        self.moving.clear()

    @rule(wpg=st.sampled_from([A, B]), rank=st.integers(0, 1))
    def die(self, wpg: WpgId, rank: int) -> None:
        state = self.books.wpgs.get(wpg)
        if state is not None and rank in state.ranks and wpg not in self.moving:
            self.books.free_rank(wpg, rank)

    @rule(wpg=st.sampled_from([A, B]))
    def forget(self, wpg: WpgId) -> None:
        if wpg not in self.moving and wpg in self.books.wpgs:
            for rank in list(self.books.wpgs[wpg].ranks):
                self.books.free_rank(wpg, rank)
            self.books.forget(wpg)

    @invariant()
    def budgets_hold(self) -> None:
        held = {0: 0, 1: 0}
        for state in self.books.wpgs.values():
            for owner in state.ranks.values():
                held[owner.device_index] += owner.nbytes if state.is_on_device else 0
        assert {i: budget.used for i, budget in self.books.devices.items()} == held
        assert all(b.used <= b.peak <= b.total for b in self.books.devices.values())
        assert self.books.host.used == sum(s.nbytes for s in self.books.wpgs.values())
        assert self.books.host.used <= self.books.host.total

    def attempt(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except PlexError:
            return None


TestLedgerHistories = LedgerMachine.TestCase
TestLedgerHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

"""Fencing refuses older numbers, each by its own; generates may overtake each other."""

from __future__ import annotations

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2
from plexsvc.fencing import Gate


def fence(epoch: int, lease: int, incarnation: int) -> common_pb2.Fence:
    return common_pb2.Fence(scheduler_epoch=epoch, lease_no=lease, incarnation=incarnation)


@pytest.mark.parametrize(
    ("stale", "number"),
    [
        ((1, 9, 9), "scheduler_epoch"),
        ((9, 1, 9), "lease_no"),
        ((9, 9, 1), "incarnation"),
    ],
)
def test_one_older_number_is_enough_and_is_named(stale: tuple[int, int, int], number: str) -> None:
    gate = Gate()
    gate.admit_exclusive(fence(2, 2, 2), what="x")
    with pytest.raises(PlexError, match=number) as caught:
        gate.admit_shared(fence(*stale), what="x")
    assert caught.value.code == ErrorCode.STALE_FENCE
    gate.admit_exclusive(fence(2, 2, 2), what="a refused order changed nothing")


def test_what_deployments_use_in_turn_compares_the_epoch_alone() -> None:
    gate = Gate(is_shared=True)
    gate.admit_exclusive(fence(2, 9, 9), what="x")
    gate.admit_exclusive(fence(2, 1, 1), what="of another deployment")
    with pytest.raises(PlexError, match="scheduler_epoch"):
        gate.admit_shared(fence(1, 9, 9), what="x")


def test_generates_overtake_each_other_but_not_an_exclusive_order() -> None:
    gate = Gate()
    gate.admit_shared(fence(1, 7, 1), what="x")
    gate.admit_shared(fence(1, 5, 1), what="x")
    gate.admit_exclusive(fence(1, 8, 1), what="x")
    with pytest.raises(PlexError):
        gate.admit_shared(fence(1, 7, 1), what="x")


def test_a_repeat_needs_no_lease_but_a_leader() -> None:
    gate = Gate(scheduler_epoch=3)
    gate.admit_exclusive(fence(3, 8, 0), what="x")
    gate.admit_leader(fence(3, 1, 0), what="x")
    with pytest.raises(PlexError):
        gate.admit_leader(fence(2, 9, 0), what="x")


def test_a_gate_of_one_process_refuses_every_other_incarnation() -> None:
    gate = Gate(incarnation=4, scheduler_epoch=2, is_process=True)
    gate.admit_exclusive(fence(3, 7, 4), what="x")
    for other in (3, 5):
        with pytest.raises(PlexError, match="incarnation"):
            gate.admit_exclusive(fence(9, 9, other), what="x")
    gate.admit_exclusive(fence(3, 7, 4), what="a refused command changed nothing")

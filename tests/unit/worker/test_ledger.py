"""Fences and the record of answers."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import common_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.ledger import Fences, Ledger


def fence(epoch: int, lease: int, incarnation: int = 4) -> common_pb2.Fence:
    return common_pb2.Fence(scheduler_epoch=epoch, lease_no=lease, incarnation=incarnation)


def test_numbers_only_grow() -> None:
    fences = Fences(incarnation=4, scheduler_epoch=2)
    fences.check(fence(2, 1))
    fences.check(fence(3, 7))
    for old in (fence(2, 7), fence(3, 6), fence(3, 7, 3), fence(3, 7, 5)):
        with pytest.raises(PlexError) as caught:
            fences.check(old)
        assert caught.value.code == ErrorCode.STALE_FENCE
    fences.check(fence(3, 7))


def test_a_refused_fence_is_not_taken_note_of() -> None:
    fences = Fences(incarnation=4, scheduler_epoch=2)
    with pytest.raises(PlexError):
        fences.check(fence(9, 9, incarnation=3))
    fences.check(fence(2, 1))


def test_replies_are_kept_up_to_the_limit_newest_first() -> None:
    ledger = Ledger(max_replies=2)
    for seq in range(4):
        ledger.finish(bytes([seq]), seq, worker_pb2.ExecuteReply(run_us=seq))
    assert [ledger.recorded(bytes([seq])) is not None for seq in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert ledger.applied_seq == 3


def test_a_passed_number_is_refused_and_a_later_one_is_not() -> None:
    ledger = Ledger(max_replies=2)
    ledger.check_order(b"a", 0)
    ledger.finish(b"a", 0, worker_pb2.ExecuteReply())
    with pytest.raises(PlexError) as caught:
        ledger.check_order(b"b", 0)
    assert caught.value.code == ErrorCode.STALE_SEQUENCE
    ledger.check_order(b"b", 7)

"""The record of answers."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.ledger import ReplyLedger


def test_replies_are_kept_up_to_the_limit_newest_first() -> None:
    ledger = ReplyLedger(max_replies=2)
    for seq in range(4):
        ledger.finish(bytes([seq]), seq, worker_pb2.ExecuteReply(run_us=seq))
    assert [ledger.recorded(bytes([seq]), attempt=0) is not None for seq in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert ledger.applied_seq == 3


def test_a_passed_number_is_refused_and_a_later_one_is_not() -> None:
    ledger = ReplyLedger(max_replies=2)
    ledger.check_order(b"a", 0)
    ledger.finish(b"a", 0, worker_pb2.ExecuteReply())
    with pytest.raises(PlexError) as caught:
        ledger.check_order(b"b", 0)
    assert caught.value.code == ErrorCode.STALE_SEQUENCE
    ledger.check_order(b"b", 7)


def test_a_refusal_is_kept_for_repeats_of_its_attempt_only() -> None:
    ledger = ReplyLedger(max_replies=2)
    refusal = worker_pb2.ExecuteReply(run_us=5)
    ledger.refuse(b"a", 7, refusal)
    assert ledger.recorded(b"a", attempt=7) is refusal
    assert ledger.recorded(b"a", attempt=8) is None
    assert ledger.recorded(b"b", attempt=7) is None
    ledger.refuse(b"a", 0, refusal)
    assert ledger.recorded(b"a", attempt=0) is None, "no attempt was named"
    ledger.check_order(b"a", 0)


def test_a_number_that_was_begun_is_used_up() -> None:
    ledger = ReplyLedger(max_replies=2)
    ledger.begin(3)
    with pytest.raises(PlexError) as caught:
        ledger.check_order(b"a", 3)
    assert caught.value.code == ErrorCode.STALE_SEQUENCE

"""What is kept of the operations since a copy, and for how long."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import common_pb2, operations_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.core.vocabulary import OperationKind
from plexsvc.scheduler.ledger.durable import CompletedOperation, Durable, Rebuilt, staged
from plexsvc.scheduler.ledger.held import Held, Published


def done(seq: int, *, nbytes: int = 0) -> CompletedOperation:
    payload = common_pb2.Payload(staged=common_pb2.StagedBundle(nbytes=nbytes)) if nbytes else None
    operation = operations_pb2.Operation(operation_id=bytes([seq]), seq=seq, payload=payload)
    held = Held(
        operation=operation,
        kind=OperationKind.FORWARD_BACKWARD,
        nbytes=0,
        submitted_us=0,
        staged_on=(NodeId("n"),) if nbytes else (),
    )
    return CompletedOperation(held=held, digest="d")


def copy(seq: int, *, on: str = "n") -> Published:
    version = VersionId(DeploymentId("d~durable"), 1, seq)
    return Published(version=version, nodes=(NodeId(on),), nbytes=(7,))


def test_a_copy_replaces_what_was_applied_before_it() -> None:
    durable = Durable(second_seq=None)
    for seq in (1, 2, 3):
        assert durable.note(done(seq, nbytes=10)) == []
    assert staged(durable.take(copy(2), seq=2)) == [b"\x01", b"\x02"]
    assert list(durable.since) == [3]
    assert durable.keeps(b"\x03")
    assert durable.held() == {"n": 14}
    assert str(durable) == (
        "can be rebuilt from its state after seq 2 (7 bytes of host memory) and 1 operations "
        "since; not if its node is lost: no other node has room"
    )


def test_what_ran_since_the_second_copy_is_kept_too() -> None:
    durable = Durable()
    for seq in (1, 2, 3, 4):
        durable.note(done(seq, nbytes=10))
    assert durable.take(copy(2), seq=2) == []
    assert staged(durable.take_second(copy(2, on="m"), seq=2)) == [b"\x01", b"\x02"]
    assert durable.take(copy(3), seq=3) == []
    assert str(durable).endswith("and 1 operations since; if its node is lost, after seq 2 on m")
    assert durable.held() == {"n": 14, "m": 14}
    durable.fall_back()
    assert (durable.seq, [one.held.operation.seq for one in durable.to_replay]) == (2, [3, 4])
    with pytest.raises(PlexError, match="there is no other") as caught:
        durable.fall_back()
    assert caught.value.code is ErrorCode.DEPLOYMENT_FAILED


def test_after_a_fall_back_the_copy_before_is_the_second_one_where_it_lies_elsewhere() -> None:
    durable = Durable()
    durable.take(copy(1), seq=1)
    durable.take_second(copy(1, on="m"), seq=1)
    durable.fall_back()
    assert durable.outlives([NodeId("k")])
    assert not durable.outlives([NodeId("m")])
    assert Durable().outlives([NodeId("k")]), "from the model's weights"
    durable.note(done(2, nbytes=10))
    assert durable.take(copy(2, on="k"), seq=2) == []
    assert str(durable).endswith("if its node is lost, after seq 1 on m")
    durable.lose_second("that was lost, too")
    durable.take(copy(3, on="k"), seq=3)
    assert durable.second is None


def test_too_much_since_the_second_copy_costs_that_copy_alone() -> None:
    durable = Durable(most_bytes=100)
    durable.take(copy(1), seq=1)
    durable.note(done(2, nbytes=60))
    durable.take(copy(2), seq=2)
    assert staged(durable.note(done(3, nbytes=60))) == [b"\x02"]
    durable.check()
    assert "not if its node is lost: too much ran since" in str(durable)


def test_beyond_its_bound_there_is_no_way_back_until_the_next_copy() -> None:
    durable = Durable(most_bytes=100)
    durable.note(done(1, nbytes=60))
    assert staged(durable.note(done(2, nbytes=60))) == [b"\x01", b"\x02"]
    durable.note(done(3, nbytes=60))
    with pytest.raises(PlexError) as caught:
        durable.check()
    assert caught.value.code is ErrorCode.DEPLOYMENT_FAILED
    assert "what ran up to seq 2 is not kept" in caught.value.message
    assert str(durable).startswith("cannot be rebuilt before its next step: what ran up to seq 2")
    durable.take(copy(2), seq=2)
    durable.check()
    assert list(durable.since) == [3]


def test_a_pause_says_what_it_was_spent_on() -> None:
    pause = Rebuilt(why="signal 9", lost_us=0, stopped_us=250_000, placed_us=500_000)
    pause.up_us = 1_250_000
    durable = Durable(pause=pause)
    assert durable.is_lost
    pause.restored_us, pause.seq, pause.replayed = 1_500_000, 12, 2
    durable.reached("going_on_us", 2_000_000)
    assert not durable.is_lost
    durable.reached("going_on_us", 9_000_000)
    assert str(pause) == (
        "was rebuilt from its state after seq 12 and 2 operations since in 2.00 s "
        "(end 0.25 s, place 0.25 s, start 0.75 s, restore 0.25 s, replay 0.50 s): signal 9"
    )
    pause.stopped_us = 0
    assert "(end 0.00 s, place 0.50 s, start 0.75 s," in str(pause)

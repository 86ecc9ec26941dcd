"""Token records of tenants that fill their room, beside those of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1 import operations_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.records import OperationRecord
from plexsvc.rollout.store import TOKEN_BYTES, RecordStore
from tests.rigs.rollout_bench import FAST, KEPT, new_record

CONFIG = replace(FAST, records_dir=Path(KEPT.name), record_bytes=100 * TOKEN_BYTES)


def record(number: int, tenant: str) -> OperationRecord:
    return new_record(operations_pb2.Operation(operation_id=number.to_bytes(16), tenant=tenant))


def finish(store: RecordStore, made: OperationRecord, *, nbytes: int) -> None:
    made.result, made.nbytes = operations_pb2.OperationResult(), nbytes
    store.settle(made)


def test_generates_that_never_end_leave_room_for_a_neighbour() -> None:
    store = RecordStore(CONFIG, SystemClock())
    for number in range(5):
        store.admit(record(number, "greedy"), most_tokens=10)
    with pytest.raises(PlexError, match=r"rollout\.record_bytes.* 'greedy'") as full:
        store.admit(record(5, "greedy"), most_tokens=10)
    assert (full.value.code, full.value.retryable) == (ErrorCode.QUEUE_FULL, True)
    store.admit(record(6, "neighbour"), most_tokens=25)


def test_a_flood_of_finished_records_drops_its_own_before_those_of_a_neighbour() -> None:
    store, theirs = RecordStore(CONFIG, SystemClock()), record(0, "neighbour")
    store.admit(theirs, most_tokens=10)
    finish(store, theirs, nbytes=10 * TOKEN_BYTES)
    for number in range(1, 100):
        mine = record(number, "greedy")
        store.admit(mine, most_tokens=10)
        finish(store, mine, nbytes=10 * TOKEN_BYTES)
    assert store.get(theirs.operation.operation_id) is theirs
    assert store.get(record(99, "greedy").operation.operation_id) is not None
    assert store.get(record(1, "greedy").operation.operation_id) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=40))
def test_records_never_exceed_their_bytes(steps: list[tuple[str, int, bool]]) -> None:
    store, running, kept = (
        RecordStore(CONFIG, SystemClock()),
        Counter[str](),
        list[OperationRecord](),
    )
    for number, (tenant, tokens, ends) in enumerate(steps):
        made = record(number, tenant)
        try:
            store.admit(made, most_tokens=tokens)
        except PlexError:
            continue
        if ends:
            finish(store, made, nbytes=tokens * TOKEN_BYTES // 2)
            kept.append(made)
        else:
            running[tenant] += tokens
        alive = [one for one in kept if store.get(one.operation.operation_id) is not None]
        assert (
            running.total() * TOKEN_BYTES + sum(one.nbytes for one in alive) <= CONFIG.record_bytes
        )
        assert max(running.values(), default=0) <= 50


async def test_who_reads_an_answer_waits_for_a_copy_of_its_record_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plexsvc.rollout.store.COPY_WAIT_US", 1)
    there, store = record(0, "reader"), RecordStore(CONFIG, SystemClock())
    store.add(there)
    key = there.operation.operation_id
    assert await store.wait_for(key, is_answered=True) is there
    with pytest.raises(PlexError, match="its token record went with the node") as gone:
        await store.wait_for((7).to_bytes(16), is_answered=True)
    assert gone.value.code is ErrorCode.RESULT_GONE

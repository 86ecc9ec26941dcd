"""Calls on a rank: dropped, repeated, refused, and for others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from plexclient.wire.v1 import common_pb2, operations_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.servicer import WorkerServicer
from tests.fakes.fake_backend import Rank
from tests.rigs.worker_batches import operation


class Served:
    """A servicer whose executor runs on a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor, **changes: Any) -> None:
        self.rank = Rank(**changes)
        self.servicer = WorkerServicer(self.rank.config, self.rank.executor, pool)

    async def execute(
        self, made: operations_pb2.Operation, *, wpg_id: str = "wpg", lease_no: int = 1
    ) -> worker_pb2.ExecuteReply:
        fence = common_pb2.Fence(scheduler_epoch=1, lease_no=lease_no, incarnation=1)
        request = worker_pb2.ExecuteRequest(wpg_id=wpg_id, fence=fence, operation=made)
        return await self.servicer.Execute(request, Mock())


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(max_workers=1) as made:
        yield made


async def test_a_dropped_call_lets_the_operation_end_and_a_repeat_gets_its_answer(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool)
    backend = served.rank.backend
    backend.gate = threading.Event()
    made = served.rank.train(1)
    async with asyncio.TaskGroup() as group:
        dropped = group.create_task(served.execute(made))
        await asyncio.get_running_loop().run_in_executor(None, backend.entered.wait, 120)
        dropped.cancel()
    async with asyncio.TaskGroup() as group:
        attached = group.create_task(served.execute(made))
        await asyncio.sleep(0)
        backend.gate.set()
    first = attached.result()
    assert not first.result.error.code
    assert (await served.execute(made)).digest == first.digest
    assert backend.calls == ["forward_backward"]


async def test_a_full_rank_refuses_and_the_refused_may_come_again(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool, max_pending=1)
    backend = served.rank.backend
    backend.gate = threading.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(served.execute(served.rank.train(1)))
        await asyncio.get_running_loop().run_in_executor(None, backend.entered.wait, 120)
        refused = await served.execute(served.rank.train(2))
        backend.gate.set()
    assert not first.result().result.error.code
    assert refused.result.error.code == "queue_full"
    assert refused.result.error.retryable
    again = await served.execute(served.rank.train(2))
    assert not again.result.error.code


async def test_orders_for_others_are_refused(pool: ThreadPoolExecutor) -> None:
    served = Served(pool)
    assert (await served.execute(operation(1, "noop"), wpg_id="x")).result.error.code == "not_found"
    assert not (await served.execute(operation(1, "noop"), lease_no=5)).result.error.code
    stale = await served.execute(operation(2, "noop"), lease_no=4)
    assert stale.result.error.code == "stale_fence"


@pytest.mark.parametrize("call", ["_check", "_future", "recorded"])
@pytest.mark.parametrize(
    "error", [PlexError(ErrorCode.UNAVAILABLE, "not now"), MemoryError("no more")]
)
async def test_a_fault_of_the_servicer_before_an_operation_leaves_it_to_a_repeat(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    served = Served(pool)
    made = served.rank.train(1)
    home: object = served.servicer if call.startswith("_") else served.rank.executor.ledger
    with monkeypatch.context() as patch:
        patch.setattr(home, call, Mock(side_effect=error))
        with contextlib.suppress(MemoryError):
            assert (await served.execute(made)).result.error.code == "unavailable"
    assert not (await served.execute(made)).result.error.code
    assert not (await served.execute(made)).result.error.code
    assert served.rank.backend.calls == ["forward_backward"]


async def test_a_poisoned_rank_asks_its_process_to_exit_after_the_answer(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool, world_size=2)
    served.rank.backend.failure_of_writing = RuntimeError("half of the weights are written")
    reply = await served.execute(operation(1, "step"))
    assert reply.result.error.code == "internal"
    assert served.servicer.must_exit.is_set()

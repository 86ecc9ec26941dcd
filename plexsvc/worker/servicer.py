"""The `Worker` service of one rank: fences, dedupes, runs operations on the torch thread.

They come as calls of gRPC, or as frames (`orders`), whose reply leaves from the thread that ran it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor as ThreadPool
from functools import partial
from typing import Any

import grpc.aio

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from plexsvc import progress
from plexsvc.errors import PlexError, not_found, queue_full
from plexsvc.fencing import Gate
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.rpc.addresses import socket_path
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.status import abort_with
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.executor import ExecutionOutcome, Executor
from plexsvc.worker.orders import OrderPort
from plexsvc.worker.thread import RankThread

log = Log(__name__)

STOP_GRACE_S = 2.0
"""How long replies under way may take when the rank stops."""


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """Runs operations serially on the one thread of `pool`; a dropped call stops none."""

    def __init__(self, config: WorkerConfig, executor: Executor, pool: ThreadPool) -> None:
        self._config = config
        self._executor = executor
        self._pool = pool
        self._gate = Gate(
            scheduler_epoch=config.scheduler_epoch, incarnation=config.incarnation, is_process=True
        )
        self._gate_lock = threading.Lock()
        self._running: dict[bytes, asyncio.Future[ExecutionOutcome]] = {}
        self._orders_socket = ""
        self.must_exit = asyncio.Event()

    def open_orders(self, thread: RankThread) -> None:
        """Take operations as frames too, on `thread`; `Describe` says where. Only on one host."""
        path = socket_path(self._config.listen)
        if path is None:
            return
        path = path.with_suffix(".orders")
        must_exit = partial(asyncio.get_running_loop().call_soon_threadsafe, self.must_exit.set)
        OrderPort(thread, partial(self._execute_now, must_exit)).open(path)
        self._orders_socket = str(path)

    async def Execute(
        self, request: worker_pb2.ExecuteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.ExecuteReply:
        """Run the operation, or answer it from the record; errors travel in the result."""
        del context
        operation_id = request.operation.operation_id
        try:
            self._check(request)
            recorded = self._executor.ledger.recorded(operation_id, attempt=request.attempt)
            if recorded is not None:
                return recorded
            outcome = await asyncio.shield(self._future(request))
        except PlexError as error:
            return self._refusal(request, error)
        if outcome.must_exit:
            self.must_exit.set()
        return outcome.reply

    def _execute_now(
        self,
        must_exit: Callable[[], object],
        request: worker_pb2.ExecuteRequest,
        reply: Callable[[worker_pb2.ExecuteReply], None],
    ) -> None:
        """Do what `Execute` does, on the torch thread itself."""
        try:
            self._check(request)
        except PlexError as error:
            reply(self._refusal(request, error))
            return
        outcome = self._executor.execute(request)
        reply(outcome.reply)
        if outcome.must_exit:
            must_exit()

    def _check(self, request: worker_pb2.ExecuteRequest) -> None:
        if request.wpg_id != self._config.wpg_id:
            raise not_found(f"this is a rank of {self._config.wpg_id}, not of {request.wpg_id}")
        self._admit(request.fence, what=show(request.operation.operation_id))

    def _admit(self, fence: common_pb2.Fence, *, what: str) -> None:
        with self._gate_lock:  # orders come on the torch thread, calls on the event loop
            self._gate.admit_exclusive(fence, what=what)

    def _future(self, request: worker_pb2.ExecuteRequest) -> asyncio.Future[ExecutionOutcome]:
        operation_id = request.operation.operation_id
        running = self._running.get(operation_id)
        if running is not None:
            return running
        if len(self._running) >= self._config.max_pending:
            raise queue_full(
                f"{show(operation_id)} not accepted: {len(self._running)} operations wait on this "
                "rank (worker max_pending); send it again when one has ended",
                limit=self._config.max_pending,
            )
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self._executor.execute, request)
        self._running[operation_id] = future
        future.add_done_callback(lambda _done: self._running.pop(operation_id, None))
        return future

    def _refusal(
        self, request: worker_pb2.ExecuteRequest, error: PlexError
    ) -> worker_pb2.ExecuteReply:
        result = wire_errors.refused(request.operation.operation_id, error)
        applied = max(0, self._executor.ledger.applied_seq)
        return worker_pb2.ExecuteReply(result=result, applied_seq=applied)

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DescribeReply:
        """Return what this rank is and what it needs."""
        del request, context
        facts, shared = self._executor.backend.facts, self._executor.shared
        return worker_pb2.DescribeReply(
            wpg_id=self._config.wpg_id,
            incarnation=self._config.incarnation,
            rank=self._config.rank,
            applied_seq=max(0, self._executor.ledger.applied_seq),
            device_bytes=self._executor.device_bytes,
            shared_key=shared.shared if shared is not None else "",
            shared_bytes=shared.nbytes if shared is not None else 0,
            parked_bytes=self._executor.parked_bytes,
            pass_bytes=self._executor.pass_bytes,
            vocab_size=facts.vocab_size,
            max_sequence_length=facts.max_sequence_length,
            initialized=self._executor.is_initialized,
            orders_socket=self._orders_socket,
            progress=progress.count(),
        )

    async def Cancel(
        self, request: worker_pb2.CancelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.CancelReply:
        """Answer at once: what a rank has begun it ends, since its peers run the same operation."""
        try:
            self._admit(request.fence, what=f"cancel of {show(request.operation_id)}")
        except PlexError as error:
            await abort_with(context, error)
        log.info("cancel arrived; the operation ends first", operation_id=request.operation_id)
        return worker_pb2.CancelReply()


async def start(
    servicer: WorkerServicer, where: str, keys: ClusterKeys
) -> tuple[grpc.aio.Server, str]:
    """Serve members of the cluster at `where`; return the server and its address."""
    server = new_server(keys)
    worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server)
    address = listen(server, where, keys, key="listen")
    await server.start()
    return server, address

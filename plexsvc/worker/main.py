"""A rank's process: builds its backend on one thread, serves the Worker service on another."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from plexsvc import log
from plexsvc.clock import SystemClock
from plexsvc.paths import model_view
from plexsvc.rpc import loops
from plexsvc.rpc.keys import read_keys
from plexsvc.statelink.client import StateClient
from plexsvc.worker.backends import registry
from plexsvc.worker.config import WorkerConfig, parse
from plexsvc.worker.executor import Executor
from plexsvc.worker.thread import RankThread

EXIT_POISONED: Final = 70
"""Exit code of a rank that failed inside an operation its peers wait in."""


def main(config: Mapping[str, Any], ready: Callable[[str], None]) -> None:
    """Run one rank until it is terminated; call `ready(address)` once it serves.

    Called in a process forked from a warm zygote: gRPC is imported only here, after the fork.

    Raises:
        PlexError: the configuration or the model does not fit.
        SystemExit: with `EXIT_POISONED` after a failure that may leave peers waiting.
    """
    log.setup()
    worker = parse(config)
    with model_view(worker.model, root=worker.model_root, socket=worker.data_socket) as model:
        _run(replace(worker, model=model), ready)


def _run(worker: WorkerConfig, ready: Callable[[str], None]) -> None:
    thread = RankThread(name="torch")
    executor = Executor(worker, registry.create(worker), clock=SystemClock())
    where = worker.data_socket
    memory = StateClient(where, worker, handlers=executor) if where else None
    thread.submit(executor.build, memory).result()
    if loops.run(_serve(worker, executor, thread, ready=ready)):
        sys.exit(EXIT_POISONED)


async def _serve(
    config: WorkerConfig,
    executor: Executor,
    thread: RankThread,
    *,
    ready: Callable[[str], None],
) -> bool:
    """Serve until SIGTERM or a poisoned operation; return whether it was the latter."""
    from plexsvc.worker import servicer as service

    servicer = service.WorkerServicer(config, executor, thread)
    servicer.open_orders(thread)
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    server, address = await service.start(servicer, config.listen, read_keys(config.keys_file))
    ready(address)
    async with asyncio.TaskGroup() as group:
        waits = [
            group.create_task(terminated.wait()),
            group.create_task(servicer.must_exit.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    ended = asyncio.wrap_future(thread.submit(lambda: None))  # after what runs, which answers first
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended, service.STOP_GRACE_S)
    await server.stop(service.STOP_GRACE_S)
    return servicer.must_exit.is_set()

"""Host of workers: the process of a node that holds its reward workers, for one proxy at a time.

The node agent forks it. The proxy's call `Work` brings orders and takes what workers say; the
workers end with the call, so a proxy that comes after another finds none of its.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.errors import unavailable
from plexsvc.log import Log
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.messages import Begin, Give, Halt, Ready, Said, StageDone, Warm
from plexsvc.reward.parcels import Outbox, ParcelReader
from plexsvc.reward.workers import LocalWorkers
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.services import Context, add_service
from plexsvc.tether import adopt_orphans

SERVICE: Final = pb.DESCRIPTOR.services_by_name["RewardHost"]

TURN_S: Final = 30.0
"""How long a proxy waits for the workers of the one before it to end."""

STOP_GRACE_S: Final = 0.5

log = Log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What a host of workers needs to know; the node agent says it."""

    listen: str
    """Where the proxy reaches it."""
    keys_file: Path
    """The cluster's keys."""
    gpus: tuple[str, ...] = ()
    """The node's GPUs for workers, by the names that CUDA knows them by."""


class WorkersHost:
    """The workers of a node."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus
        self._turn = asyncio.Lock()

    async def work(self, _: object, context: Context) -> None:
        """Do what a proxy orders and say what workers say, until it goes.

        Raises:
            PlexError: `unavailable` while the workers of another proxy do not end.
        """
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            raise unavailable(
                f"workers of another proxy have not ended for {TURN_S:g} s; ask again"
            ) from None
        try:
            await self._serve(context)
        finally:
            self._turn.release()

    async def _serve(self, context: Context) -> None:
        outbox = Outbox()

        def heard(worker: WorkerId, what: Ready | StageDone | str) -> None:
            outbox.put(Said(worker, what))

        async with LocalWorkers(heard, gpus=self._gpus) as workers, asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_tell(outbox, context))
            await _obey(context, workers)
            telling.cancel()


async def _tell(outbox: Outbox, context: Context) -> None:
    async for parcel in outbox.parcels():
        await context.write(parcel)


async def _obey(context: Context, workers: LocalWorkers) -> None:
    """Do what the proxy orders until it says nothing more.

    Raises:
        ValueError: what it sent is no message.
    """
    inbox = ParcelReader()
    while isinstance(parcel := await context.read(), bytes):
        for order in inbox.take(parcel):
            match order:
                case Begin(worker=worker, modules=modules, gpus=gpus):
                    workers.start(WorkerId(worker), modules=modules, gpus=gpus)
                case Give(worker=worker, task=task):
                    workers.send(WorkerId(worker), task)
                case Warm(modules=modules):
                    workers.warm(modules)
                case Halt(worker=worker):
                    workers.stop(WorkerId(worker))
                case other:
                    raise AssertionError(other)


async def serve(config: HostConfig, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM; tell by `ready` where."""
    keys = read_keys(config.keys_file)
    host = WorkersHost(config.gpus)
    server = new_server(keys)
    add_service(server, SERVICE, calls={"Work": host.work})
    address = listen(server, config.listen, keys, key="listen")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await server.start()
    ready(address)
    await stopped.wait()
    await server.stop(STOP_GRACE_S)


def main(table: dict[str, Any], ready: Callable[[str], None]) -> None:
    """Be the host of workers of a node; called in a process that its agent forked."""
    logging.setup()
    adopt_orphans()  # what a worker's sandbox leaves is seen to end
    loops.run(serve(configuration.parse(table, HostConfig, where="host of workers"), ready=ready))

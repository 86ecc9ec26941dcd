"""The process of an engine that adapters share: an instance for each deployment that has a seat.

Whoever has a seat is reached as any instance is, at an address of its own, and opens the versions
of its own job alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final, Protocol, TypeAlias

import grpc.aio

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import rollout_pb2, rollout_pb2_grpc
from plexsvc import config as config_files
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import PlexError, internal
from plexsvc.log import Log
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.engines.base import Engine
from plexsvc.rollout.instance import (
    EXIT_BROKEN,
    InstanceServicer,
    Opener,
    OpenVersion,
    first,
    serving_instance,
)
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.statelink.opening import VersionOpener

log = Log(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

STOP_GRACE_S: Final = 1.0


class Seats(Protocol):
    """The seats of an engine."""

    @property
    def engine(self) -> Engine:
        """Return the engine itself."""

    async def take(self) -> Engine:
        """Return a new seat.

        Raises:
            PlexError: `queue_full`; `internal` when the engine broke.
        """


class SharedEngineServicer(rollout_pb2_grpc.SharedEngineServicer):
    """Opens and ends the instances of one engine."""

    def __init__(
        self, seats: Seats, config: InstanceConfig, *, clock: Clock, opener: Opener
    ) -> None:
        self._seats, self._clock, self._opener = seats, clock, opener
        self.address = config.listen
        """Where the engine is: what those who share it tell."""
        self._open: dict[str, AsyncExitStack] = {}
        self._turn = asyncio.Lock()

    async def TakeSeat(
        self, request: rollout_pb2.TakeSeatRequest, context: Context
    ) -> rollout_pb2.TakeSeatReply:
        """Answer with the address of a new instance."""
        del context
        try:
            given = json.loads(request.config_json)
            config = config_files.parse(given, InstanceConfig, where="seat")
            async with self._turn:
                await self._leave(request.proc_id)
                address = await self._enter(request.proc_id, config)
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            told = error if isinstance(error, PlexError) else internal(f"no seat: {error!r}")
            log.warning("no seat taken", proc=request.proc_id, error=told)
            return rollout_pb2.TakeSeatReply(error=to_wire(told))
        log.info("seat taken", proc=request.proc_id, deployment=config.deployment_id)
        return rollout_pb2.TakeSeatReply(address=address)

    async def LeaveSeat(
        self, request: rollout_pb2.LeaveSeatRequest, context: Context
    ) -> rollout_pb2.LeaveSeatReply:
        """End an instance."""
        del context
        async with self._turn:
            await self._leave(request.proc_id)
        return rollout_pb2.LeaveSeatReply()

    async def close(self) -> None:
        """End all instances."""
        for proc_id in list(self._open):
            await self._leave(proc_id)

    async def _enter(self, proc_id: str, config: InstanceConfig) -> str:
        async with AsyncExitStack() as stack:
            seat = await self._seats.take()
            stack.push_async_callback(seat.dispose)
            open_version = stack.enter_context(self._opener(config))
            servicer = InstanceServicer(seat, config, clock=self._clock, open_version=open_version)
            address = await stack.enter_async_context(
                serving_instance(servicer, seat, config, shared=self.address)
            )
            stack.push_async_callback(seat.dispose)  # first, so that no call of it is waited for
            self._open[proc_id] = stack.pop_all()
        return address

    async def _leave(self, proc_id: str) -> None:
        stack = self._open.pop(proc_id, None)
        if stack is not None:
            await stack.aclose()
            log.info("seat left", proc=proc_id)


async def serve_seats(
    seats: Seats,
    config: InstanceConfig,
    *,
    clock: Clock,
    opener: Opener,
    ready: Callable[[str], None],
) -> None:
    """Serve an engine to its node's agent until SIGTERM or cancellation.

    Raises:
        SystemExit: with `EXIT_BROKEN` once the engine broke and its calls have been told.
    """
    keys = read_keys(config.keys_file)
    servicer = SharedEngineServicer(seats, config, clock=clock, opener=opener)
    server = new_server(keys)
    rollout_pb2_grpc.add_SharedEngineServicer_to_server(servicer, server)
    address = servicer.address = listen(server, config.listen, keys, key="listen")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await server.start()
    ready(address)
    await first(stop.wait(), seats.engine.until_broken())
    await server.stop(STOP_GRACE_S)
    if seats.engine.broken is not None:
        log.error("engine ends: it broke", error=seats.engine.broken.message)
        sys.exit(EXIT_BROKEN)
    await servicer.close()


async def run_vllm(config: InstanceConfig, ready: Callable[[str], None], *, opener: Opener) -> None:
    """Build a vLLM engine for adapters and serve it until SIGTERM.

    Raises:
        PlexError: why vLLM cannot run the model.
        SystemExit: with `EXIT_BROKEN` after it broke.
    """
    from plexsvc.rollout.engines import vllm
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm.seats import VllmSeats

    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    seats = await VllmSeats.start(
        vllm.config_of(config), adapter_bytes=config.adapter_bytes, clock=clock, executor=executor
    )
    await serve_seats(seats, config, clock=clock, opener=opener, ready=ready)


@contextlib.contextmanager
def opening(config: InstanceConfig) -> Iterator[OpenVersion]:
    """Open the versions of an instance's job while the context lasts."""
    with contextlib.closing(VersionOpener(config)) as opener:
        yield opener.open

"""A rollout instance: one engine behind the `RolloutInstance` service, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import grpc.aio

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import (
    common_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    statemanager_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc import log as logs
from plexsvc import progress
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import PlexError, bad_request, internal, unavailable
from plexsvc.fencing import Gate
from plexsvc.ids import VersionId
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.engines.base import MODEL, Engine, LoadReport
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.status import abort_with
from plexsvc.weights.reading import OpenedVersion

log = logs.Log(__name__)

FLUSH_US: Final = 5_000
"""Pause between two frames of one call: steps shorter than this share a frame."""

STOP_GRACE_S: Final = 1.0

CALLED: Final = rollout_pb2.DESCRIPTOR.services_by_name["RolloutInstance"].methods_by_name
"""What managers call, which may be of any node."""

EXIT_BROKEN: Final = 70
"""Exit code of an instance whose engine broke: its process has nothing that can be trusted."""

OpenVersion = Callable[[statemanager_pb2.PublishedVersion], OpenedVersion]
Opener: TypeAlias = "Callable[[InstanceConfig], contextlib.AbstractContextManager[OpenVersion]]"
"""Opens the versions that an instance may read, while the context lasts."""

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class InstanceServicer(rollout_pb2_grpc.RolloutInstanceServicer):
    """Serves one engine; only one weight update at a time, fenced like every order."""

    def __init__(
        self,
        engine: Engine,
        config: InstanceConfig,
        *,
        clock: Clock,
        open_version: OpenVersion,
    ) -> None:
        self._engine, self._config, self._clock = engine, config, clock
        self._open_version = open_version
        self._update = asyncio.Lock()
        self._checksum = ""
        """Of the version in use."""
        self._gate = Gate(
            scheduler_epoch=config.scheduler_epoch,
            incarnation=config.incarnation,
            is_shared=not config.deployment_id,
        )

    async def Generate(
        self, request: rollout_pb2.InstanceGenerateRequest, context: Context
    ) -> AsyncIterator[rollout_pb2.InstanceFrame]:
        """Stream deltas until every request has finished or was aborted."""
        try:
            self._gate.admit_shared(request.fence, what=f"generate on {self._config.wpg_id}")
            if request.HasField("version"):
                wanted = VersionId.of(request.version)
                if self._engine.version != wanted:
                    raise unavailable(  # noqa: TRY301 - told to the caller below, like all others
                        f"{self._config.wpg_id}/{self._config.rank} serves {self._engine.version}, "
                        f"and {wanted} was asked; load it first"
                    )
            left = len(request.requests)
            async with aclosing(self._engine.generate(request.requests)) as stream:  # type: ignore[type-var]  # an async generator
                async for deltas in stream:
                    yield rollout_pb2.InstanceFrame(deltas=deltas)
                    left -= sum(1 for delta in deltas if delta.finish_reason)
                    # The last deltas wait for no others to share their frame.
                    if left:
                        await self._clock.sleep(FLUSH_US)
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            await abort_with(context, _typed(error))

    async def Encode(
        self, request: rollout_pb2.EncodeRequest, context: Context
    ) -> rollout_pb2.EncodeReply:
        """Return prompts as token ids, with the text of each where asked."""
        try:
            prompts = await self._engine.encode(request.prompts, texts=request.texts)
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            await abort_with(context, _typed(error))
        return rollout_pb2.EncodeReply(prompts=prompts)

    async def Abort(
        self, request: rollout_pb2.InstanceAbortRequest, context: Context
    ) -> rollout_pb2.InstanceAbortReply:
        """End requests; their streams get what they have so far and finish reason `abort`."""
        del context
        await self._engine.abort(request.request_ids)
        return rollout_pb2.InstanceAbortReply()

    async def LoadVersion(
        self, request: rollout_pb2.LoadVersionRequest, context: Context
    ) -> rollout_pb2.LoadVersionReply:
        """Verify and load a version in place; the version in use is answered at once."""
        del context
        return await asyncio.shield(self._act(request, self._load))

    async def Sleep(
        self, request: rollout_pb2.SleepRequest, context: Context
    ) -> rollout_pb2.SleepReply:
        """Give the memory of weights and KV cache back; what is under way waits."""
        del context
        try:
            self._gate.admit_exclusive(request.fence, what=f"sleep of {self._config.wpg_id}")
            async with self._update:
                nbytes = await self._engine.sleep()
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            return rollout_pb2.SleepReply(error=to_wire(_typed(error)))
        log.info("instance asleep", nbytes=nbytes)
        return rollout_pb2.SleepReply(nbytes=nbytes)

    async def Wake(
        self, request: rollout_pb2.LoadVersionRequest, context: Context
    ) -> rollout_pb2.LoadVersionReply:
        """Verify and fill a version, and go on; one that is awake loads it if it serves another."""
        del context
        return await asyncio.shield(self._act(request, self._wake))

    async def Stats(
        self, request: rollout_pb2.InstanceStatsRequest, context: Context
    ) -> rollout_pb2.InstanceStats:
        """Return what the engine is doing."""
        del request, context
        stats = self._engine.stats()
        return rollout_pb2.InstanceStats(
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            version=self._engine.version._asdict(),
            checksum=self._checksum,
            broken=None if self._engine.broken is None else to_wire(self._engine.broken),
            generated_tokens=stats.generated_tokens,
            progress=progress.count(),
            is_asleep=self._engine.is_asleep,
        )

    async def _act(
        self,
        request: rollout_pb2.LoadVersionRequest,
        act: Callable[[rollout_pb2.LoadVersionRequest], Awaitable[rollout_pb2.LoadVersionReply]],
    ) -> rollout_pb2.LoadVersionReply:
        """Do what runs alone, and note what the engine has.

        An engine that replaces weights goes on when the caller leaves, so this is not cut short.
        """
        try:
            self._gate.admit_exclusive(request.fence, what=f"load on {self._config.wpg_id}")
            async with self._update:
                return await act(request)
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            told = _typed(error)
            log.warning("version not loaded", version=VersionId.of(request.published), error=told)
            return self._served(error=to_wire(told))

    async def _load(self, request: rollout_pb2.LoadVersionRequest) -> rollout_pb2.LoadVersionReply:
        if VersionId.of(request.published) == self._engine.version:
            return self._served()
        return await self._fill(request.published, self._engine.load_version)

    async def _wake(self, request: rollout_pb2.LoadVersionRequest) -> rollout_pb2.LoadVersionReply:
        if not self._engine.is_asleep:
            return await self._load(request)
        return await self._fill(request.published, self._engine.wake)

    async def _fill(
        self,
        published: statemanager_pb2.PublishedVersion,
        act: Callable[..., Awaitable[LoadReport]],
    ) -> rollout_pb2.LoadVersionReply:
        version = VersionId.of(published)
        is_models_own = version == MODEL  # read from its directory
        if not published.holders and not is_models_own:
            raise bad_request(f"{version} came without a node that holds it")
        started_us = self._clock.monotonic_us()
        opened = OpenedVersion()
        if not is_models_own:
            opened = await asyncio.to_thread(self._open_version, published)
        report = await act(opened, version=version)
        self._checksum = report.checksum
        load_us = self._clock.monotonic_us() - started_us
        log.info("version loaded", version=version, nbytes=report.nbytes, load_us=load_us)
        return self._served(nbytes=report.nbytes, load_us=load_us)

    def _served(
        self, *, error: common_pb2.Error | None = None, nbytes: int = 0, load_us: int = 0
    ) -> rollout_pb2.LoadVersionReply:
        return rollout_pb2.LoadVersionReply(
            error=error,
            nbytes=nbytes,
            load_us=load_us,
            version=self._engine.version._asdict(),
            checksum=self._checksum,
        )


def _typed(error: Exception) -> PlexError:
    if isinstance(error, PlexError):
        return error
    log.error("instance failed")  # with the trace
    return internal(f"the instance failed: {error!r}")


class DescribeServicer(worker_pb2_grpc.WorkerServicer):
    """Tells the scheduler what the instance takes on its device, as ranks do."""

    def __init__(self, engine: Engine, config: InstanceConfig, *, shared: str = "") -> None:
        self._engine, self._config, self._shared = engine, config, shared

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.DescribeReply:
        """Return the engine's facts."""
        del request, context
        facts = self._engine.facts
        return worker_pb2.DescribeReply(
            wpg_id=self._config.wpg_id,
            incarnation=self._config.incarnation,
            rank=self._config.rank,
            device_bytes=facts.device_bytes,
            vocab_size=facts.vocab_size,
            max_sequence_length=facts.max_model_len,
            initialized=True,
            engine=self._shared,
        )


async def run_vllm(
    config: InstanceConfig,
    ready: Callable[[str], None],
    *,
    opener: Opener,
) -> None:
    """Build a vLLM engine and serve it until SIGTERM.

    Raises:
        PlexError: why vLLM cannot run the model.
        SystemExit: with `EXIT_BROKEN` after it broke.
    """
    from plexsvc.rollout.engines import vllm
    from plexsvc.rollout.engines.executor import StepExecutor

    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    engine = await vllm.VllmEngine.start(
        vllm.config_of(config),
        clock=clock,
        executor=executor,
        opener=partial(_open_for_rank, opener, config),
    )
    with opener(config) as open_version:
        await serve_engine(engine, config, clock=clock, open_version=open_version, ready=ready)
    # Nothing is disposed of: vLLM would walk every object of the zygote, and the process ends here.


def _open_for_rank(
    opener: Opener, config: InstanceConfig, number: int
) -> contextlib.AbstractContextManager[OpenVersion]:
    """Open versions for a tensor rank: a state manager knows it as a process of its own."""
    own = f"{config.wpg_id}/{config.rank}"
    return opener(replace(config, wpg_id=own, rank=number))


async def serve_engine(
    engine: Engine,
    config: InstanceConfig,
    *,
    clock: Clock,
    open_version: OpenVersion,
    ready: Callable[[str], None],
) -> None:
    """Serve `engine` to members of the cluster until SIGTERM or cancellation.

    Raises:
        SystemExit: with `EXIT_BROKEN` once the engine broke and its calls have been told.
    """
    servicer = InstanceServicer(engine, config, clock=clock, open_version=open_version)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving_instance(servicer, engine, config) as address:
        ready(address)
        await first(stop.wait(), engine.until_broken())
    if engine.broken is not None:
        log.error("instance ends: its engine broke", error=engine.broken.message)
        sys.exit(EXIT_BROKEN)


@contextlib.asynccontextmanager
async def serving_instance(
    servicer: InstanceServicer, engine: Engine, config: InstanceConfig, *, shared: str = ""
) -> AsyncIterator[str]:
    """Serve an instance to members of the cluster while the context lasts; yield its address.

    `shared` is where the engine is that it has a seat in, if it does not have it to itself.
    """
    keys = read_keys(config.keys_file)
    server = new_server(keys, takes_nodes=[*CALLED, "Describe"])  # managers are on any node
    rollout_pb2_grpc.add_RolloutInstanceServicer_to_server(servicer, server)
    described = DescribeServicer(engine, config, shared=shared)
    worker_pb2_grpc.add_WorkerServicer_to_server(described, server)
    address = listen(server, config.listen, keys, key="listen")
    await server.start()
    log.info("instance ready", wpg_id=config.wpg_id, rank=config.rank, address=address)
    try:
        yield address
    finally:
        await server.stop(STOP_GRACE_S)


async def first(*ends: Coroutine[Any, Any, object]) -> None:
    """Return when one of `ends` has come."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(end) for end in ends]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

"""Seats of a vLLM engine: each is an engine to its deployment, and all are one batch.

What one loads is an adapter of its own. Nobody can name another's: a request gets the adapter of
the seat that it came by.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc import families
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request, queue_full, unavailable
from plexsvc.ids import VersionId
from plexsvc.lora import Lora, linears
from plexsvc.rollout.engines.base import MODEL, EngineFacts, EngineStats, LoadReport
from plexsvc.rollout.engines.executor import StepExecutor
from plexsvc.rollout.engines.model_dir import ModelDir, read_model_dir
from plexsvc.rollout.engines.vllm import adapters
from plexsvc.rollout.engines.vllm.core import VllmConfig
from plexsvc.rollout.engines.vllm.engine import VllmEngine
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedVersion

MAX_SEATS: Final = 64
"""However small adapters are: vLLM looks through all places for them in each step."""

DTYPES_BYTES: Final = {"float32": 4, "bfloat16": 2}


class VllmSeats:
    """The seats of one engine. Used on its event loop."""

    def __init__(self, engine: VllmEngine, config: VllmConfig, model: ModelDir) -> None:
        self.engine, self.config, self.model = engine, config, model
        self._numbers = itertools.count(1)
        self._taken = 0

    @classmethod
    async def start(
        cls, config: VllmConfig, *, adapter_bytes: int, clock: Clock, executor: StepExecutor
    ) -> VllmSeats:
        """Return a serving engine, nobody of whose seats is taken.

        Raises:
            PlexError: as `VllmEngine.start`.
        """
        table, model = families.read(config.model), read_model_dir(config.model)
        config = replace(
            config,
            lora_targets=tuple(linears(table)),
            max_seats=min(MAX_SEATS, max(1, adapter_bytes // adapter_bytes_of(table, config))),
        )
        engine = await VllmEngine.start(config, clock=clock, executor=executor)
        return cls(engine, config, model)

    async def take(self) -> SeatEngine:
        """Return a new seat, which begins with the model's own weights.

        Raises:
            PlexError: `queue_full` when all are taken; `internal` when the engine broke.
        """
        if self._taken >= self.config.max_seats:
            raise queue_full(
                f"the engine of {self.model.path} has {self._taken} adapters of rank "
                f"{self.config.lora_rank}, as many as scheduler.adapter_bytes has room for",
                limit=self.config.max_seats,
            )
        self._taken += 1
        made = SeatEngine(self, next(self._numbers))
        try:
            await made.put(adapters.NOTHING, MODEL)
        except BaseException:
            self._taken -= 1
            raise
        return made

    def left(self) -> None:
        """Note that a seat is free again."""
        self._taken -= 1


class SeatEngine:
    """One seat, as an `Engine`."""

    def __init__(self, seats: VllmSeats, number: int) -> None:
        self._seats, self._engine, self._number = seats, seats.engine, number
        self._version = MODEL
        self._is_left = False

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine is."""
        return self._engine.facts

    @property
    def version(self) -> VersionId:
        """Return the version of the adapter in use."""
        return self._version

    @property
    def broken(self) -> PlexError | None:
        """Return what broke the engine, if anything did."""
        return self._engine.broken

    async def until_broken(self) -> None:
        """Return when the engine has broken and its calls have been told."""
        await self._engine.until_broken()

    async def generate(
        self, requests: Sequence[rollout_pb2.InstanceRequest]
    ) -> AsyncIterator[list[operations_pb2.SampleDelta]]:
        """Yield deltas of all `requests` until each has finished.

        Raises:
            PlexError: as `VllmEngine.generate`.
        """
        async for deltas in self._engine.generate(requests, seat=self._number):
            yield deltas

    async def encode(
        self, prompts: Sequence[operations_pb2.Prompt], *, texts: bool
    ) -> list[operations_pb2.Prompt]:
        """Return texts, chats and token ids as token ids, with the text of each if asked.

        Raises:
            PlexError: as `VllmEngine.encode`.
        """
        return await self._engine.encode(prompts, texts=texts)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests with finish reason `abort`; unknown ids are ignored."""
        await self._engine.abort(request_ids)

    async def load_version(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Verify a version of adapters and put it in place of the one before.

        Raises:
            PlexError: `checksum_mismatch` or `bad_request`: the one before is still in use;
                `internal` when the engine broke.
        """
        seats = self._seats
        if version == MODEL:
            await self.put(adapters.NOTHING, version)
            return LoadReport(nbytes=0, checksum="")

        def read() -> tuple[str, adapters.ReadAdapter]:
            checksums = [verify(part.manifest, part.data) for part in published.parts]
            return "+".join(checksums), adapters.read(
                published.parts,
                model=seats.model,
                targets=seats.config.lora_targets,
                max_rank=seats.config.lora_rank,
            )

        checksum, adapter = await asyncio.to_thread(read)
        await self.put(adapter, version)
        return LoadReport(nbytes=adapter.nbytes, checksum=checksum)

    async def put(self, adapter: adapters.ReadAdapter, version: VersionId) -> None:
        """Have the engine apply an adapter to the requests of this seat from its next step on."""
        engine, one = self._engine, adapters.seat(self._number, version)

        def act(core: adapters.Core) -> None:
            if self._is_left:
                raise unavailable("this seat of the engine was left")
            adapters.put(core, one, adapter)
            engine.seats = {**engine.seats, self._number: one}

        await engine.between_steps(act)
        self._version = version

    @property
    def is_asleep(self) -> bool:
        """Return that it never sleeps."""
        return False

    async def sleep(self) -> NoReturn:
        """Refuse: others have seats there, too.

        Raises:
            PlexError: `bad_request`.
        """
        raise bad_request("an engine that adapters share does not sleep")

    async def wake(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Load a version: it does not sleep.

        Raises:
            PlexError: as `load_version`.
        """
        return await self.load_version(published, version=version)

    def stats(self) -> EngineStats:
        """Return counts and usage of the whole engine."""
        return self._engine.stats()

    async def dispose(self) -> None:
        """Leave: what is under way ends, and the adapter is gone from memory on return."""
        if self._is_left:
            return
        self._is_left = True
        engine, number = self._engine, self._number
        await engine.abort(engine.flights.of_seat(number))

        def act(core: adapters.Core) -> None:
            adapters.remove(core, engine.seats[number])
            engine.seats = {one: has for one, has in engine.seats.items() if one != number}

        await engine.between_steps(act)
        self._seats.left()


def adapter_bytes_of(table: Mapping[str, Any], config: VllmConfig) -> int:
    """Return what one adapter takes where vLLM applies it: as if it had the highest rank."""
    each = DTYPES_BYTES[config.dtype or "float32"]
    return Lora(rank=config.lora_rank, alpha=1.0).elements(table) * each

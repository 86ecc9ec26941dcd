"""The vLLM adapter: an in-process EngineCore stepped by the instance's executor thread.

Theory of operation. vLLM's front end (tokeniser, detokeniser, one async queue a request) is left
out: requests go to the core as token ids, and each step's outputs come back to the event loop in
one call, where they join the `DeltaBox` of their caller. Whatever changes the core (requests,
aborts, weights) runs on the executor thread between two steps. A front end for serving traffic can
be put on the same core later; the executor's policy then decides who steps.

What vLLM does by default and must not: it packs CPU weights away (so in-place updates would miss
them in silence), draws a request's random numbers from one running generator (so a sample could
not move, and on the CPU a chunked prefill of a seeded request crashes), keeps its prefix cache
over a weight update, and tears down process-wide state with the first engine that goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import vllm.v1.engine.core as vllm_core
from vllm.v1.engine import EngineCoreRequest

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request, internal, unavailable
from plexsvc.ids import VersionId
from plexsvc.log import Log
from plexsvc.rollout.engines.base import (
    FINISH_LENGTH,
    MODEL,
    DeltaBox,
    EngineFacts,
    EngineStats,
    LoadReport,
)
from plexsvc.rollout.engines.drawing import GENERATED
from plexsvc.rollout.engines.executor import StepExecutor
from plexsvc.rollout.engines.model_dir import ModelDir, opened, read_model_dir
from plexsvc.rollout.engines.sleeping import Span, give_back
from plexsvc.rollout.engines.texts import Texts
from plexsvc.rollout.engines.vllm import admission, ranks, stepping
from plexsvc.rollout.engines.vllm.adapters import Seat
from plexsvc.rollout.engines.vllm.core import LiveWeights, VllmConfig
from plexsvc.rollout.engines.vllm.flights import Flights
from plexsvc.rollout.engines.vllm.guiding import Guide
from plexsvc.rollout.engines.vllm.shared import SharedCore
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedVersion

log = Log(__name__)
T = TypeVar("T")

STUCK_US: Final = 60_000_000
"""A step that takes longer does not return: it makes at most one token of each sample."""


class VllmEngine:
    """One model on one vLLM core. Create with `start`, inside a running event loop."""

    def __init__(
        self,
        core: vllm_core.EngineCore,
        config: VllmConfig,
        model: ModelDir,
        *,
        weights: LiveWeights,
        executor: StepExecutor,
        clock: Clock,
    ) -> None:
        self._core, self._config, self._model, self._clock = core, config, model, clock
        self._weights, self._executor = weights, executor
        self._loop = asyncio.get_running_loop()
        self._broken: PlexError | None = None
        self._broke = asyncio.Event()
        self._is_loading = False
        self._is_asleep = False
        self._version = MODEL
        self.seats: Mapping[int, Seat] = {}
        """Whose adapters it has, by number; replaced on the executor's thread, between steps."""
        self._texts = Texts(model)
        self.flights = Flights(
            self._texts, stop=lambda one: executor.call(lambda: core.abort_requests([one]))
        )
        self._guide = Guide(core, self._texts)

    @classmethod
    async def start(
        cls,
        config: VllmConfig,
        *,
        clock: Clock,
        executor: StepExecutor,
        opener: ranks.RankOpener | None = None,
    ) -> VllmEngine:
        """Return a serving engine with the model directory's weights as version 0.

        Takes seconds; the core is built on the executor's thread. Of several tensor ranks each
        opens versions by `opener`.

        Raises:
            PlexError: `unknown_model`, or `bad_request` when vLLM cannot run the model so: it is
                asked for a few tokens first.
        """
        model = read_model_dir(config.model)
        try:
            config = replace(config, max_model_len=config.max_model_len or model.max_positions)
            core, weights = await asyncio.wrap_future(
                executor.call(lambda: ranks.build(config, model, opener))
            )
        except (ValueError, RuntimeError) as error:
            raise bad_request(f"vLLM cannot run {config.model} as configured: {error}") from error
        core.set_weight_version(stepping.label_of(MODEL))
        engine = cls(core, config, model, weights=weights, executor=executor, clock=clock)
        if config.tp > 1:
            ranks.watch(core, lambda: engine._post(engine._lose_rank))
        await asyncio.to_thread(executor.add, engine)
        await engine.warm_up()
        return engine

    async def warm_up(self) -> None:
        """Generate a few tokens, drawn and likeliest, and forget them.

        Raises:
            PlexError: `bad_request`, in vLLM's words, for a model that loads and cannot run.
        """
        prompt = operations_pb2.Prompt(token_ids=[0] * min(4, self._config.max_model_len - 2))
        requests = [
            rollout_pb2.InstanceRequest(
                request_id=f"warm-up/{temperature}",
                prompt=prompt,
                sampling=operations_pb2.SamplingParams(
                    max_tokens=2, temperature=temperature, seed=0, ignore_eos=True
                ),
            )
            for temperature in (0.0, 1.0)
        ]
        try:
            async for _ in self.generate(requests):
                pass
        except PlexError as error:
            raise bad_request(
                f"vLLM cannot run {self._config.model} as configured: {error.message}"
            ) from error
        await asyncio.wrap_future(self._executor.call(self._core.reset_prefix_cache))
        self.flights.generated = 0

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine is."""
        return EngineFacts(
            vocab_size=self._model.vocab_size,
            max_model_len=self._config.max_model_len,
            device_bytes=self._weights.device_bytes,
        )

    @property
    def version(self) -> VersionId:
        """Return the weight version in use."""
        return self._version

    @property
    def broken(self) -> PlexError | None:
        """Return what broke the engine, if anything did: a step that does not return has, too."""
        if self._broken is None and self._executor.step_us > STUCK_US:
            stuck_s = self._executor.step_us // 1_000_000
            return internal(f"vLLM is stuck in a step since {stuck_s} s")
        return self._broken

    async def until_broken(self) -> None:
        """Return when the engine has broken and its calls have been told."""
        await self._broke.wait()

    def stats(self) -> EngineStats:
        """Return counts and usage, as of the last step."""
        running, waiting = self._core.scheduler.get_request_counts()
        return EngineStats(
            running=running,
            waiting=waiting,
            kv_usage=self._core.scheduler.get_kv_cache_usage(),
            generated_tokens=self.flights.generated,
        )

    async def generate(
        self, requests: Sequence[rollout_pb2.InstanceRequest], *, seat: int = 0
    ) -> AsyncIterator[list[operations_pb2.SampleDelta]]:
        """Yield deltas of all `requests` until each has finished, with the adapter of a `seat`.

        Raises:
            PlexError: `bad_request` for a request that does not fit; `unavailable` while it
                sleeps; `internal` when vLLM failed.
        """
        await self._guide.check(requests)
        self._be_awake()
        box = DeltaBox()
        try:
            built = [self._admit(request, box, seat=seat) for request in requests]
            self._submit([request for request in built if request is not None], box, seat=seat)
            while deltas := await box.take():
                yield deltas
        finally:
            await self.abort([r.request_id for r in requests if r.request_id in box.samples])

    async def encode(
        self, prompts: Sequence[operations_pb2.Prompt], *, texts: bool
    ) -> list[operations_pb2.Prompt]:
        """Return texts, chats and token ids as token ids, with the text of each if asked.

        Raises:
            PlexError: `bad_request` for a model without tokenizer or template, or what they refuse.
        """
        return await asyncio.to_thread(
            lambda: [self._texts.encode(one, texts=texts) for one in prompts]
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests with finish reason `abort`; unknown ids are ignored."""
        if mine := self.flights.abort(request_ids):
            self._executor.call(lambda: self._core.abort_requests(mine))

    async def load_version(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Verify, then replace the weights in place and drop what was computed with the old.

        Raises:
            PlexError: `checksum_mismatch` or `bad_request`: the old weights are still in use;
                `unavailable` while it sleeps; `internal` when it broke, with weights of which
                nobody knows what they are.
        """
        self._be_awake()
        return await self._load(published, version=version)

    @property
    def is_asleep(self) -> bool:
        """Return whether it sleeps."""
        return self._is_asleep

    async def sleep(self) -> int:
        """Stop between two steps and give the pages of weights and KV cache back; return the bytes.

        Raises:
            PlexError: `bad_request` on anything but a CPU, or for weights that cannot be filled
                again; `internal` when vLLM failed.
        """
        if self._broken is not None:
            raise self._broken
        memory = self._weights.memory()
        return await asyncio.wrap_future(self._executor.call(lambda: self._lie_down(memory)))

    async def wake(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Fill the weights and go on with what was under way; `MODEL` needs nothing published.

        Raises:
            PlexError: `checksum_mismatch` or `bad_request`: it sleeps on; `internal` when it broke.
        """
        if self._broken is not None:
            raise self._broken
        return await self._load(published, version=version)

    def _be_awake(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._is_asleep:
            raise unavailable("the engine is asleep; wake it first")

    async def _load(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        checksums = [
            await asyncio.to_thread(verify, part.manifest, part.data) for part in published.parts
        ]
        if version == MODEL:
            published = OpenedVersion(parts=opened(self._model))
        is_on_model = not self._is_asleep and self._version.deployment_id in {
            MODEL.deployment_id,
            version.deployment_id,
        }
        filling = self._weights.filling(published, is_on_model=is_on_model)
        try:
            nbytes = await asyncio.wrap_future(self._swap(filling, version))
        except PlexError:
            raise
        except Exception as error:
            broken = internal(f"vLLM failed to load {version}: {error!r}")
            self._fail(broken)
            raise broken from error
        self._version = version
        return LoadReport(nbytes=nbytes, checksum="+".join(checksums))

    async def dispose(self) -> None:
        """Stop stepping and free the model and its cache."""
        await asyncio.to_thread(self._executor.remove, self)
        await asyncio.wrap_future(self._executor.call(self._core.shutdown))
        self._fail(unavailable("the engine was disposed of"))

    def _swap(self, filling: Iterator[int], version: VersionId) -> Future[int]:
        """Replace the weights tensor by tensor, so that another engine can step in between.

        This engine does not step meanwhile, and nobody can break it off.
        """
        done: Future[int] = Future()
        done.set_running_or_notify_cancel()
        written: list[int] = []

        def advance() -> None:
            try:
                self._read_in_flight()  # before the first tensor: later there is none
                if (nbytes := next(filling, None)) is not None:
                    written.append(nbytes)
                    self._post(lambda: self._executor.call(advance))
                    return
                self._core.reset_prefix_cache(reset_running_requests=True)
                self._core.set_weight_version(stepping.label_of(version))
                self._is_asleep = False
            except BaseException as error:  # noqa: BLE001 - every outcome belongs to the caller
                done.set_exception(error)
            else:
                done.set_result(sum(written))
            self._is_loading = False

        self._is_loading = True
        self._executor.call(advance)
        return done

    async def between_steps(self, act: Callable[[vllm_core.EngineCore], T]) -> T:
        """Return what `act` does to the core between two steps; none is in flight.

        Raises:
            PlexError: what it refused with; `internal` when the engine broke.
        """
        self._be_awake()

        def alone() -> T:
            self._read_in_flight()
            return act(self._core)

        try:
            return await asyncio.wrap_future(self._executor.call(alone))
        except PlexError:
            raise
        except Exception as error:
            broken = internal(f"vLLM failed with adapters: {error!r}")
            self._fail(broken)
            raise broken from error

    # -- on the executor's thread

    def share(self) -> SharedCore:
        """Return what a policy needs that steps this engine beside another."""
        return SharedCore(self._core, self, clock=self._clock, hand_back=self._hand_back)

    def _hand_back(self, request_ids: Sequence[str]) -> None:
        """End requests at once; their callers hear finish reason `abort`."""
        ids = list(request_ids)
        self._core.abort_requests(ids)
        self._post(lambda: self.flights.abort(ids))

    def has_work(self) -> bool:
        """Return whether the core has requests."""
        is_held = self._is_loading or self._is_asleep or self._broken is not None
        return not is_held and stepping.has_work(self._core)

    def _lie_down(self, memory: Sequence[Span]) -> int:
        """Have every request wait, with its tokens and without KV blocks; free the memory."""
        if self._is_asleep:
            return 0
        self._read_in_flight()
        self._is_asleep = True
        is_unused = self._core.reset_prefix_cache(reset_running_requests=True)
        assert is_unused, "a request holds KV blocks and is not running"
        return give_back(memory)

    def _read_in_flight(self) -> None:
        """Take the tokens of batches in flight: they were made of what is changed next."""
        for outputs in stepping.drain(self._core):
            self._post(partial(self.flights.deliver, outputs, self.seats))

    def step(self) -> None:
        """Run one step and hand its outputs to the event loop."""
        try:
            outputs = stepping.step(self._core)
        except Exception as error:  # noqa: BLE001 - whatever broke ends the engine with a cause
            log.error("engine step failed")
            failure = internal(f"vLLM failed in a step: {error!r}")
            self._broken = failure
            self._post(lambda: self._fail(failure))
            return
        if outputs:
            self._post(partial(self.flights.deliver, outputs, self.seats))

    def _post(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    # -- on the event loop

    def _admit(
        self, request: rollout_pb2.InstanceRequest, box: DeltaBox, *, seat: int
    ) -> EngineCoreRequest | None:
        """Check and register a request; None when nothing is left to generate."""
        prompt, sampling, one = request.prompt, request.sampling, request.request_id
        if one in self.flights:
            raise admission.refused(request, "this id is already running here")
        admission.check(request, model=self._model, max_model_len=self._config.max_model_len)
        if sampling.max_tokens <= len(prompt.generated):
            box.add_request(request)
            box.finish(one, reason=FINISH_LENGTH)
            return None
        built = admission.build(request, model=self._model, at_us=self._clock.wall_us())
        self.flights.add(request, box, seat=seat)
        return built

    def _submit(self, requests: Sequence[EngineCoreRequest], box: DeltaBox, *, seat: int) -> None:
        def add() -> None:
            for given in requests:
                given.lora_request = self.seats[seat].adapter if seat else None
                request, wave = self._core.preprocess_add_request(given)
                request.append_output_token_ids(given.sampling_params.extra_args[GENERATED])
                request.num_prompt_tokens = request.num_tokens  # it asserts what may be cached
                self._core.add_request(request, wave)

        def added(future: Any) -> None:
            if future.exception() is not None:
                error = internal(f"vLLM refused: {future.exception()!r}")
                self._post(lambda: box.fail(error))

        self._executor.call(add).add_done_callback(added)

    def _lose_rank(self) -> None:
        self._fail(internal("a tensor rank of vLLM died"))

    def _fail(self, error: PlexError) -> None:
        self._broken = error
        self._broke.set()
        self.flights.fail(error)

"""vLLM's own front end (`AsyncLLM`, the OpenAI application) on a core stepped by our executor.

`AsyncLLM` expects its core in another process. Here it gets a client whose core lives in this one
and is stepped on the executor's thread, so that a policy decides at each step which engine of the
process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar

import vllm.v1.engine.core as vllm_core
from fastapi import FastAPI
from vllm import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.request import RequestStatus

from plexsvc.clock import Clock
from plexsvc.log import Log
from plexsvc.rollout.engines.executor import StepExecutor
from plexsvc.rollout.engines.model_dir import read_model_dir
from plexsvc.rollout.engines.vllm import stepping
from plexsvc.rollout.engines.vllm.core import VllmConfig, arguments_of, prepare_process
from plexsvc.rollout.engines.vllm.shared import SharedCore

log = Log(__name__)

T = TypeVar("T")

ON_CORE: Final = (
    "add_lora",
    "compute_weight_checksums",
    "get_supported_tasks",
    "get_weight_version",
    "is_sleeping",
    "list_loras",
    "pin_lora",
    "profile",
    "release_kv_cache_memory",
    "remove_lora",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume_scheduler",
    "set_weight_version",
    "sleep",
    "wake_up",
)
"""Calls of `AsyncLLM` that are the core's own methods, run between two steps."""


class InProcessClient(EngineCoreClient):
    """What `AsyncLLM` calls its core by; a `Steppable` of the executor."""

    def __init__(self, executor: StepExecutor, core: vllm_core.EngineCore) -> None:
        self.core = core
        self.resources = SimpleNamespace(engine_dead=False)
        self.engine_ranks_managed = [0]
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()
        for name in ON_CORE:
            setattr(self, f"{name}_async", self._on_executor(getattr(core, name)))

    # -- on the executor's thread

    def share(self, clock: Clock) -> SharedCore:
        """Return what a policy needs that steps this engine beside another."""
        return SharedCore(self.core, self, clock=clock)

    def has_work(self) -> bool:
        """Return whether a step would do anything."""
        return not self.resources.engine_dead and stepping.has_work(self.core)

    def step(self) -> None:
        """Run one step and hand its outputs to the event loop."""
        try:
            outputs = stepping.step(self.core)
        except Exception as error:  # noqa: BLE001 - whatever broke ends the engine with a cause
            log.error("serving step failed")
            self.resources.engine_dead = True
            self._put(error)
            return
        for one in outputs.values():
            self._put(one)

    def _put(self, output: EngineCoreOutputs | Exception) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)

    # -- on the event loop

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the outputs of the next step."""
        output = await self._outputs.get()
        if isinstance(output, Exception):
            raise output
        return output

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Give the core a request."""
        await self._run(lambda: self.core.add_request(*self.core.preprocess_add_request(request)))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """End requests."""
        if request_ids:
            await self._run(lambda: self.core.abort_requests(list(request_ids)))

    async def pause_scheduler_async(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling; with `abort` the requests end, and their callers are told."""

        def pause() -> None:
            if mode == "abort":
                ended = self.core.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
                ids = [request.request_id for request in ended]
                outputs = [EngineCoreOutput(i, [], finish_reason=FinishReason.ABORT) for i in ids]
                self._put(EngineCoreOutputs(finished_requests=set(ids), outputs=outputs))
            self.core.pause_scheduler("keep", clear_cache)

        await self._run(pause)

    async def is_scheduler_paused_async(self) -> bool:
        """Return whether scheduling was stopped."""
        return await self._run(self.core.is_scheduler_paused)

    async def collective_rpc_async(self, *args: Any, **named: Any) -> Any:
        """Call the worker."""
        return await self._run(lambda: self.core.collective_rpc(*args, **named))

    def dp_engines_running(self) -> bool:
        """Return whether data-parallel engines run: there are none."""
        return False

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the engine; the executor steps it no more."""
        del timeout
        if self.resources.engine_dead:
            return
        self.resources.engine_dead = True
        self._executor.remove(self)
        self._executor.call(self.core.shutdown).result()

    def _on_executor(self, method: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def call(*args: Any, **named: Any) -> T:
            return await self._run(lambda: method(*args, **named))

        return call

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._executor.call(function))


Tell: TypeAlias = Callable[[list[float], list[float]], None]
"""Takes times to first tokens, and mean times per further token of requests that ended; seconds."""


class _LatencyRecorder(StatLoggerBase):
    """Tells of each step's latencies."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take the figures of a step."""
        del scheduler_stats, mm_cache_stats, engine_idx
        if iteration_stats is None:
            return
        ended = [one for one in iteration_stats.finished_requests if one.num_generation_tokens > 1]
        tpots_s = [one.mean_time_per_output_token for one in ended]
        self._tell(iteration_stats.time_to_first_tokens_iter, tpots_s)

    def log_engine_initialized(self) -> None:
        """Say nothing."""


async def start_front(
    config: VllmConfig, executor: StepExecutor, *, name: str, tell: Tell
) -> AsyncLLM:
    """Return vLLM's front end with the model directory's weights; the core steps on `executor`.

    Raises:
        PlexError: `unknown_model`.
        ValueError: what vLLM does not run, in its words.
    """
    model = read_model_dir(config.model)
    config = replace(config, max_model_len=config.max_model_len or model.max_positions)
    await asyncio.wrap_future(executor.call(lambda: prepare_process(model.architectures)))
    arguments = AsyncEngineArgs(
        **arguments_of(config), served_model_name=[name], disable_log_stats=False
    )
    original = EngineCoreClient.make_async_mp_client

    def make(vllm_config: Any, executor_class: Any, log_stats: bool, **_: Any) -> InProcessClient:
        core = executor.call(
            lambda: vllm_core.EngineCore(vllm_config, executor_class, log_stats)
        ).result()
        return InProcessClient(executor, core)

    EngineCoreClient.make_async_mp_client = staticmethod(make)
    try:
        front = AsyncLLM.from_engine_args(
            arguments, stat_loggers=[lambda *_: _LatencyRecorder(tell)]
        )
    finally:
        EngineCoreClient.make_async_mp_client = original
    executor.add(front.engine_core)
    return front


async def openai_app(front: AsyncLLM, *, model: str, name: str) -> FastAPI:
    """Return vLLM's OpenAI application on `front`."""
    parser = make_arg_parser(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", model, "--served-model-name", name])
    tasks = await front.get_supported_tasks()
    app = build_app(arguments, tasks, front.model_config)
    await init_app_state(front, app.state, arguments, tasks)
    return app

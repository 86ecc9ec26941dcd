"""A vLLM engine with batches in flight, disturbed at every point of its loop, and a plain one.

Run as `python -m tests.rigs.batches_in_flight MODE MODEL ITS_VERSION OTHER_VERSION`: prints JSON.
`MODE` is `queue`, where vLLM schedules what else there is while a batch runs, or `async`, where it
schedules the next token of a sample before it has the one before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from plexclient.wire.v1 import rollout_pb2
from plexsvc.clock import SystemClock
from plexsvc.ids import VersionId
from plexsvc.rollout.engines import sleeping, weights
from plexsvc.rollout.engines.base import MODEL
from plexsvc.rollout.preload import ZYGOTE_ENV, preload
from plexsvc.weights.reading import OpenedVersion
from tests.rigs.rollout_requests import Answer, collect, request
from tests.rigs.vllm_process import lying_in, open_files

if TYPE_CHECKING:
    from plexsvc.rollout.engines.vllm import VllmEngine

T = TypeVar("T")

PROMPTS: Final = ([3, 4, 5], [6, 7], [8, 9, 10, 11], [12, 3])
TOKENS: Final = 6
STEPS: Final = 2 * TOKENS + 4
"""After how many steps it is disturbed, at most: the last comes after the last token."""

STOP: Final = 2
"""Which sample is stopped by itself."""


class InlineExecutor:
    """Runs calls at once, and steps when it is told: a test knows what is in flight."""

    step_us = 0
    engine: VllmEngine | None = None

    def call(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - every outcome belongs to the caller
            future.set_exception(error)
        return future

    def add(self, engine: VllmEngine) -> None:
        self.engine = engine


class Stepped:
    """An engine, and how many steps it has made."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine

    async def run(
        self,
        requests: Sequence[rollout_pb2.InstanceRequest],
        *,
        at: int = -1,
        disturb: Callable[[], Awaitable[object]] | None = None,
    ) -> dict[tuple[int, int], Answer]:
        """Generate, and do something after so many steps; return what came."""
        found: dict[tuple[int, int], Answer] = {}

        async def read() -> None:
            async for deltas in self.engine.generate(requests):
                collect(deltas, found)

        steps = 0
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            while not reading.done():
                await asyncio.sleep(0)
                if steps == at and disturb is not None:
                    await disturb()
                    disturb = None
                if self.engine.has_work():
                    self.engine.step()
                    steps += 1
        while self.engine.has_work():  # what is in flight is read to its end
            self.engine.step()
        return found


def asked(name: str, found: dict[tuple[int, int], Answer] | None = None) -> list[Any]:
    """Return requests for all samples, or for what is left of those that were aborted."""
    made = []
    for index, prompt in enumerate(PROMPTS):
        had = [] if found is None else found[index, 0].tokens
        if len(had) < TOKENS:
            made.append(
                request(
                    prompt,
                    name=name,
                    index=index,
                    seed=index,
                    max_tokens=TOKENS,
                    ignore_eos=True,
                    generated=had,
                )
            )
    return made


def shown(found: dict[tuple[int, int], Answer]) -> list[dict[str, Any]]:
    return [
        {"index": key[0], "tokens": one.tokens, "logprobs": one.logprobs, "versions": one.versions}
        for key, one in sorted(found.items())
    ]


def published(file: Path, version: int) -> OpenedVersion:
    return open_files(lying_in(file, version=version))


async def build(model: Path) -> Stepped:
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

    executor: Any = InlineExecutor()
    config = VllmConfig(
        model=model, dtype="", max_model_len=64, kv_cache_bytes=16 << 20, max_num_seqs=8
    )
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(
            VllmEngine.start(config, clock=SystemClock(), executor=executor)
        )
        while not starting.done():
            await asyncio.sleep(0)
            if executor.engine is not None and executor.engine.has_work():
                executor.engine.step()
    return Stepped(starting.result())


def force(mode: str) -> None:
    """Have engines that are built from here on keep two batches in flight."""
    from vllm import AsyncEngineArgs
    from vllm.config import VllmConfig
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    VllmConfig.max_concurrent_batches = property(lambda _: 2)
    create = AsyncEngineArgs.create_engine_config

    def created(self: Any, *args: Any, **named: Any) -> VllmConfig:
        made = create(self, *args, **named)
        made.scheduler_config.async_scheduling = mode == "async"  # a CPU's platform turns it off
        return made

    AsyncEngineArgs.create_engine_config = created
    UniProcExecutor.execute_model = run_late("execute_model")
    UniProcExecutor.sample_tokens = run_late("sample_tokens")


LATE: Final[deque[LateFuture]] = deque()
"""What was begun and has not run, in order."""


class LateFuture(Future[Any]):
    """Work of a device: it runs when its outcome is asked for, after all begun before it.

    So a device is as late as one can be, and what is changed meanwhile is found changed.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work
        LATE.append(self)

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            first = LATE.popleft()
            first.set_result(first._work())
        return super().result(timeout)


def run_late(method: str) -> Any:
    def begin(self: Any, given: Any, non_block: bool = False) -> Any:
        def work() -> Any:
            return self.collective_rpc(method, args=(given,), single_value=True)

        return LateFuture(work) if non_block else work()

    return begin


async def drill(mode: str, model: Path, files: tuple[Path, Path]) -> dict[str, Any]:
    plain = await build(model)
    force(mode)
    queued = await build(model)
    under_way = watched(queued.engine)
    whole = shown(await plain.run(asked("whole")))
    cases = [case async for case in disturbed(queued, plain)]
    after = shown(await queued.run(asked("after")))
    return {
        "scheduler": type(queued.engine._core.scheduler).__name__,
        "step": queued.engine._core.step_fn.__name__,
        "whole": whole,
        "cases": cases,
        "after": after,
        "swaps": [swap async for swap in swapped(queued, plain, files)],
        "under_way": under_way,
    }


def watched(engine: VllmEngine) -> list[int]:
    """Return a list to which every change of weights or memory adds the tokens in flight then."""
    from plexsvc.rollout.engines.vllm import core as vllm_core
    from plexsvc.rollout.engines.vllm import engine as vllm_engine

    under_way: list[int] = []

    def note() -> None:
        queue = engine._core.batch_queue
        under_way.append(sum(batch.total_num_scheduled_tokens for _, batch, _ in queue or ()))

    def fill(*args: Any, **more: Any) -> Iterator[int]:
        note()
        yield from weights.fill(*args, **more)

    def give_back(*args: Any) -> int:
        note()
        return sleeping.give_back(*args)

    for module, name, noted in (
        (vllm_core, "fill", fill),
        (vllm_engine, "give_back", give_back),
    ):
        setattr(module, name, noted)
    return under_way


async def disturbed(queued: Stepped, plain: Stepped) -> AsyncIterator[dict[str, Any]]:
    """Yield what is left of samples that were stopped, or whose engine slept, after each step."""
    engine = queued.engine

    async def sleep_and_wake() -> None:
        await engine.sleep()
        assert not engine.has_work()
        await engine.wake(OpenedVersion(), version=MODEL)

    for at, kind in itertools.product(range(STEPS), ("one stopped", "all stopped", "asleep")):
        name = f"{kind}{at}/"
        which = {"one stopped": [STOP], "all stopped": range(len(PROMPTS)), "asleep": []}[kind]
        stopped = [f"{name}{index}" for index in which]
        disturb = partial(engine.abort, stopped) if stopped else sleep_and_wake
        found = await queued.run(asked(name), at=at, disturb=disturb)
        left = asked(f"{name}rest", found)
        rest = shown(await plain.run(left)) if left else []
        yield {"kind": kind, "at": at, "found": shown(found), "rest": rest}


async def swapped(
    queued: Stepped, plain: Stepped, files: tuple[Path, Path]
) -> AsyncIterator[dict[str, Any]]:
    """Yield what comes where weights are replaced after each step, and what a plain engine adds."""
    engine, versions = queued.engine, itertools.count(1)

    async def load(one: VllmEngine, file: Path) -> None:
        version = next(versions)
        await one.load_version(published(file, version), version=VersionId("actor", 0, version))

    await load(plain.engine, files[1])
    for at in range(STEPS):
        was = engine.version.version
        found = await queued.run(asked(f"swap{at}/"), at=at, disturb=lambda: load(engine, files[1]))
        old = {
            key: Answer(tokens=one.tokens[: one.versions.count(was)]) for key, one in found.items()
        }
        rest = await plain.run(asked(f"swap{at}/rest", old))
        yield {"at": at, "old": shown(old), "found": shown(found), "rest": shown(rest)}
        await load(engine, files[0])


if __name__ == "__main__":
    os.environ.update(ZYGOTE_ENV)  # noqa: TID251 - as a zygote's, before vLLM is imported
    preload()
    arguments = [Path(one) for one in sys.argv[2:]]
    drilled = drill(sys.argv[1], arguments[0], (arguments[1], arguments[2]))
    sys.stdout.write(json.dumps(asyncio.run(drilled)) + "\n")

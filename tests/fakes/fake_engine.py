"""A fake engine: tokens are a function of (seed, position, version); steps wait for permission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout.engines.base import (
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_STOP,
    DeltaBox,
    EngineFacts,
    EngineStats,
    LoadReport,
)
from plexsvc.rollout.sampling import draw_seed
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedVersion

VOCAB, MAX_LEN = 50, 128
MAX_TEMPERATURE = 2.0
STEP_S = 0.001
"""A step takes this long, as a small model's does: an abort has time to arrive."""


async def _at_once(version: VersionId) -> None:
    del version


def fake_token(request: rollout_pb2.InstanceRequest, *, draw: int, version: VersionId) -> int:
    """Return the token of one draw; greedy ones depend on the prompt instead of the seed."""
    sampling = request.sampling
    seed = sampling.seed if sampling.temperature else sum(request.prompt.token_ids)
    return draw_seed(seed + 1000 * version.version, position=draw) % VOCAB


def fake_text(token: int) -> str:
    """Return what a token reads as."""
    return chr(ord("A") + token)


class FakeEngine:
    """One token a request and step. With `held` every step waits for `allow`."""

    def __init__(self, *, held: bool = False) -> None:
        self.version = VersionId()
        self.generated = 0
        self.held = held
        self.broken: PlexError | None = None
        self._broke = asyncio.Event()
        self.is_asleep = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._step_s = STEP_S
        self._turn: asyncio.Lock | None = None
        self._permits = asyncio.Semaphore(0)
        self._boxes: dict[str, DeltaBox] = {}
        self.salts: list[str] = []
        """Of the requests that it got."""
        self.loads: Callable[[VersionId], Awaitable[None]] = _at_once
        """Waited for before a version is loaded."""
        self.spoils: Callable[[operations_pb2.SampleDelta], None] = lambda _: None
        """What becomes of each delta before it is sent."""
        self.idle = asyncio.Event()
        """Set whenever the last request ends."""

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(vocab_size=VOCAB, max_model_len=MAX_LEN, device_bytes=1 << 20)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._boxes), waiting=0, kv_usage=0.0, generated_tokens=self.generated
        )

    def allow(self, steps: int) -> None:
        """Let held generates make `steps` more steps between them."""
        for _ in range(steps):
            self._permits.release()

    def release(self) -> None:
        """Hold no more."""
        self.held = False
        self.allow(1000)

    async def until_broken(self) -> None:
        await self._broke.wait()

    def break_down(self, cause: str) -> None:
        """Break in the middle of whatever it does."""
        self.broken = PlexError(ErrorCode.INTERNAL, cause)
        for box in self._boxes.values():
            box.fail(self.broken)
        self._boxes.clear()
        self._broke.set()

    def serve_in_turn(self, *, step_s: float) -> None:
        """Run one call after another, each step that long, as a full engine does."""
        self._turn, self._step_s = asyncio.Lock(), step_s

    async def generate(
        self, requests: Sequence[rollout_pb2.InstanceRequest]
    ) -> AsyncIterator[list[operations_pb2.SampleDelta]]:
        if self.broken is not None:
            raise self.broken
        self._be_awake()
        box = DeltaBox()
        for request in requests:
            self.check(request)
        for request in requests:
            box.add_request(request)
            self.salts.append(request.cache_salt)
            self._boxes[request.request_id] = box
            if request.sampling.max_tokens <= len(request.prompt.generated):
                self.finish(request.request_id, FINISH_LENGTH)
        try:
            async with asyncio.TaskGroup() as group:
                driver = group.create_task(self._drive(requests, box))
                while deltas := await box.take():
                    for delta in deltas:
                        self.spoils(delta)
                    yield deltas
                driver.cancel()
        finally:
            await self.abort([request.request_id for request in requests])

    def check(self, request: rollout_pb2.InstanceRequest) -> None:
        """Refuse what does not fit."""
        length = len(request.prompt.token_ids) + len(request.prompt.generated)
        too_hot = request.sampling.temperature > MAX_TEMPERATURE
        if not request.prompt.token_ids or length >= MAX_LEN or request.sampling.stop or too_hot:
            raise PlexError(
                ErrorCode.BAD_REQUEST, f"request {request.request_id} refused by the fake"
            )

    async def encode(
        self, prompts: Sequence[operations_pb2.Prompt], *, texts: bool
    ) -> list[operations_pb2.Prompt]:
        for prompt in prompts:
            if "refused" in prompt.chat:
                raise PlexError(ErrorCode.BAD_REQUEST, "refused by the fake's template")
        encoded = []
        for one in prompts:
            ids = one.token_ids or [ord(letter) % VOCAB for letter in one.text or one.chat]
            words = [fake_text(token) for token in ids] if texts else []
            encoded.append(operations_pb2.Prompt(token_ids=ids, texts=words))
        return encoded

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.finish(request_id, FINISH_ABORT)

    async def load_version(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        self._be_awake()
        return await self._fill(published, version=version)

    def _be_awake(self) -> None:
        if self.is_asleep:
            raise PlexError(ErrorCode.UNAVAILABLE, "the fake is asleep")

    async def _fill(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        checksums = [verify(part.manifest, part.data) for part in published.parts]
        await self.loads(version)
        self.version = version
        nbytes = sum(part.manifest.nbytes for part in published.parts)
        return LoadReport(nbytes=nbytes, checksum="+".join(checksums))

    async def sleep(self) -> int:
        self.is_asleep = True
        self._awake.clear()
        return 1 << 20

    async def wake(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        report = await self._fill(published, version=version)
        self.is_asleep = False
        self._awake.set()
        return report

    async def dispose(self) -> None:
        await self.abort(list(self._boxes))

    async def _drive(self, requests: Sequence[rollout_pb2.InstanceRequest], box: DeltaBox) -> None:
        async with self._turn or nullcontext():
            await self._step(requests, box)

    async def _step(self, requests: Sequence[rollout_pb2.InstanceRequest], box: DeltaBox) -> None:
        step = 0
        while any(request.request_id in self._boxes for request in requests):
            if self.held:
                await self._permits.acquire()
            await asyncio.sleep(self._step_s)
            await self._awake.wait()
            for request in requests:
                if request.request_id in self._boxes:
                    self._draw(request, box, step=step)
            step += 1

    def _draw(self, request: rollout_pb2.InstanceRequest, box: DeltaBox, *, step: int) -> None:
        prompt, sampling = request.prompt, request.sampling
        token = fake_token(request, draw=prompt.draws_used + step, version=self.version)
        scored = sampling.prompt_logprobs and not step and not prompt.generated
        news = operations_pb2.SampleDelta(
            token_ids=[token],
            logprobs=[-token / 8],
            prompt_logprobs=[-1.0] * (len(prompt.token_ids) - 1) if scored else (),
            texts=[fake_text(token)] if sampling.texts else (),
            cached_tokens=0 if step else 1,
        )
        box.put(request.request_id, news, version=self.version)
        self.generated += 1
        if token in sampling.stop_token_ids:
            self.finish(request.request_id, FINISH_STOP, stop_reason=str(token))
        elif len(prompt.generated) + step + 1 >= sampling.max_tokens:
            self.finish(request.request_id, FINISH_LENGTH)

    def finish(
        self, request_id: str, reason: int = FINISH_LENGTH, *, stop_reason: str = ""
    ) -> None:
        """End a request; safe to repeat."""
        box = self._boxes.pop(request_id, None)
        if box is not None:
            box.finish(request_id, reason=reason, stop_reason=stop_reason)
            if not self._boxes:
                self.idle.set()

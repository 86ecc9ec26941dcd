"""A rollout image whose processes serve a fake engine of many slots and long answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc import config as config_files
from plexsvc.clock import SystemClock
from plexsvc.node.config import ImageConfig
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.engines.base import DeltaBox, EngineFacts
from plexsvc.rollout.instance import serve_engine
from plexsvc.statelink.opening import VersionOpener
from tests.fakes.fake_engine import VOCAB, FakeEngine

ZYGOTE_ENV: Final[dict[str, str]] = {}
IMAGE: Final = ImageConfig(
    name="rollout", preload="tests.fakes.fake_rollout", entrypoint="tests.fakes.fake_rollout:main"
)
STRIDE: Final = 500
"""Tokens of a step: what is tested is how many there are, not how fast they come."""
MAX_LEN: Final = 1 << 15
STUCK: Final = 7
"""A prompt that begins with it is sampled to its half until the file `STUCK_UNTIL` is there."""
STUCK_UNTIL: Final = "PLEX_TEST_STUCK_UNTIL"
"""The variable of the environment that names the file."""


class FakeLongEngine(FakeEngine):
    """Makes `STRIDE` tokens a step; a prompt of one token is held until one of two comes."""

    def __init__(self) -> None:
        super().__init__()
        self._go = asyncio.Event()

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(vocab_size=VOCAB, max_model_len=MAX_LEN, device_bytes=1 << 20)

    def check(self, request: rollout_pb2.InstanceRequest) -> None:
        del request

    async def _step(self, requests: Sequence[rollout_pb2.InstanceRequest], box: DeltaBox) -> None:
        if len(requests[0].prompt.token_ids) > 1:
            self._go.set()
        await self._go.wait()
        await super()._step(requests, box)

    def _draw(self, request: rollout_pb2.InstanceRequest, box: DeltaBox, *, step: int) -> None:
        had = len(request.prompt.generated) + step * STRIDE
        is_half = 2 * had >= request.sampling.max_tokens
        if is_half and request.prompt.token_ids[0] == STUCK and not _may_go_on():
            return
        count = min(STRIDE, request.sampling.max_tokens - had)
        news = operations_pb2.SampleDelta(
            token_ids=[(had + at) % VOCAB for at in range(count)], logprobs=[-1.0] * count
        )
        box.put(request.request_id, news, version=self.version)
        if had + count >= request.sampling.max_tokens:
            self.finish(request.request_id)


def _may_go_on() -> bool:
    return Path(os.environ[STUCK_UNTIL]).exists()  # noqa: TID251 - a test's own word to its engines


def preload() -> None:
    """Nothing more is needed."""


def main(config: dict[str, Any], ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM."""
    parsed = config_files.parse(config, InstanceConfig, where="fake rollout instance")

    opener = VersionOpener(parsed)

    async def serve() -> None:
        clock = SystemClock()
        await serve_engine(
            FakeLongEngine(), parsed, clock=clock, open_version=opener.open, ready=ready
        )

    asyncio.run(serve())

"""Protocol of engines: what an instance asks of whatever generates tokens.

All methods are called on the instance's event loop; an engine does its work on threads of its own
and hands deltas over through the `DeltaBox` of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import Versioned, VersionId

if TYPE_CHECKING:
    from plexsvc.weights.reading import OpenedVersion

MODEL: Final = VersionId()

FINISH_STOP = operations_pb2.FINISH_REASON_STOP
FINISH_LENGTH = operations_pb2.FINISH_REASON_LENGTH
FINISH_ABORT = operations_pb2.FINISH_REASON_ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine is: fixed for its life."""

    vocab_size: int
    max_model_len: int
    device_bytes: int
    """Weights and KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What an engine is doing now."""

    running: int
    waiting: int
    kv_usage: float
    generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A finished weight update."""

    nbytes: int
    checksum: str
    """xxh3-128 over the version's block checksums."""


class Engine(Protocol):
    """Generates tokens from one set of weights, whose version it knows at every token."""

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine is."""

    @property
    def version(self) -> VersionId:
        """Return the weight version in use."""

    @property
    def broken(self) -> PlexError | None:
        """Return what broke the engine, if anything did: it answers nothing but that."""

    async def until_broken(self) -> None:
        """Return when the engine has broken and its calls have been told."""

    def generate(
        self, requests: Sequence[rollout_pb2.InstanceRequest]
    ) -> AsyncIterator[list[operations_pb2.SampleDelta]]:
        """Yield deltas of all `requests` until each has finished.

        Every delta carries the versions of its own tokens. Closing the iterator aborts what is
        left.

        Raises:
            PlexError: `bad_request` for a request this engine cannot run, before the first delta;
                `internal` when the engine broke.
        """

    async def encode(
        self, prompts: Sequence[operations_pb2.Prompt], *, texts: bool
    ) -> list[operations_pb2.Prompt]:
        """Return texts, chats and token ids as token ids, with the text of each if asked.

        Raises:
            PlexError: `bad_request` for a model without tokenizer or template, or what they refuse.
        """

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests with finish reason `abort`; unknown ids are ignored."""

    async def load_version(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Replace the weights in place, between two steps, and recompute what was cached.

        Raises:
            PlexError: `checksum_mismatch` or `bad_request`: the old weights are still in use;
                `unavailable` while it sleeps; `internal` when the engine broke.
        """

    @property
    def is_asleep(self) -> bool:
        """Return whether it sleeps."""

    async def sleep(self) -> int:
        """Stop between two steps and free weights and KV cache; return the bytes that were freed.

        What is under way stays, and goes on exactly once the engine has woken. Nothing new is
        taken: `generate` raises `unavailable`. To one that sleeps nothing happens.

        Raises:
            PlexError: `bad_request` for an engine that cannot sleep; `internal` when it broke.
        """

    async def wake(self, published: OpenedVersion, *, version: VersionId) -> LoadReport:
        """Fill the weights and go on; `MODEL` needs nothing published.

        Raises:
            PlexError: `checksum_mismatch` or `bad_request`: it sleeps on; `internal` when it broke.
        """

    def stats(self) -> EngineStats:
        """Return counts and usage."""

    async def dispose(self) -> None:
        """Free everything; the engine answers nothing afterwards."""


@dataclass(slots=True, kw_only=True)
class SampleState:
    """One request in flight, as the event loop sees it."""

    request: rollout_pb2.InstanceRequest
    position: int
    pending: operations_pb2.SampleDelta | None = None
    done: bool = False


@dataclass(slots=True)
class DeltaBox:
    """Deltas of one call, merged per sample until they are taken. Owned by the event loop.

    Bounded by what the call may generate: a slow reader gets fewer, longer deltas.
    """

    samples: dict[str, SampleState] = field(default_factory=dict)
    error: Exception | None = None
    _dirty: list[SampleState] = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _open: int = 0

    def add_request(self, request: rollout_pb2.InstanceRequest) -> None:
        """Register a request before its first delta."""
        state = SampleState(request=request, position=len(request.prompt.generated))
        self.samples[request.request_id] = state
        self._open += 1

    def put(
        self, request_id: str, news: operations_pb2.SampleDelta, *, version: VersionId = MODEL
    ) -> None:
        """Append tokens of one sample, and what comes with them."""
        state = self.samples[request_id]
        if state.done:
            return
        delta = self._pending(state)
        news.cached_tokens += delta.cached_tokens
        delta.MergeFrom(news)
        end = state.position + len(news.token_ids)
        extend_spans(delta, version=version, start=state.position, end=end)
        state.position = end

    def finish(self, request_id: str, *, reason: int, stop_reason: str = "") -> None:
        """Mark a sample as ended; nothing is accepted for it afterwards."""
        state = self.samples[request_id]
        if state.done:
            return
        delta = self._pending(state)
        delta.finish_reason = reason  # type: ignore[assignment]  # stubs know only their enum type
        delta.stop_reason = stop_reason
        state.done = True
        self._open -= 1

    def fail(self, error: Exception) -> None:
        """End the call with `error` once what came before it was taken."""
        self.error = error
        self._ready.set()

    async def take(self) -> list[operations_pb2.SampleDelta]:
        """Wait for deltas and return them; an empty list when every sample has ended.

        Raises:
            Exception: what `fail` was given.
        """
        while not self._dirty:
            if self.error is not None:
                raise self.error
            if not self._open:
                return []
            self._ready.clear()
            await self._ready.wait()
        taken, self._dirty = self._dirty, []
        return [self._release(state) for state in taken]

    @staticmethod
    def _release(state: SampleState) -> operations_pb2.SampleDelta:
        assert state.pending is not None, state
        delta, state.pending = state.pending, None
        return delta

    def _pending(self, state: SampleState) -> operations_pb2.SampleDelta:
        if state.pending is None:
            request = state.request
            state.pending = operations_pb2.SampleDelta(
                prompt_index=request.prompt_index,
                sample_index=request.sample_index,
                position=state.position,
            )
            self._dirty.append(state)
            self._ready.set()
        return state.pending


def extend_spans(
    delta: operations_pb2.SampleDelta, *, version: Versioned, start: int, end: int
) -> None:
    """Say that tokens [start, end) came from `version`, widening the last span."""
    if end <= start:
        return
    spans = delta.versions
    last = spans[-1] if spans else None
    if (
        last is not None
        and last.end == start
        and last.version == version.version
        and last.incarnation == version.incarnation
        and last.deployment_id == version.deployment_id
    ):
        last.end = end
    else:
        spans.add(start=start, end=end, **VersionId.of(version)._asdict())

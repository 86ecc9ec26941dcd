"""The token record of one generate: what it has produced, and the frames that readers get.

Theory of operation. The rollout core says how much of a delta is new; the record adds that. Added
deltas are *pending* until they are *sealed* into frames numbered 1, 2, 3, ...; a sealed frame never
changes, so any number of readers replay the same stream from any cursor. It is in the record's file
before a reader gets it: when the manager is killed, its successor takes the frames from there, and
samples go on from the positions that they have. Where the file is lost, too, another record begins.
Its draws may differ, so each record has a number of its own in its cursors, and a reader that comes
with a cursor of another record gets every frame. So it is where a successor on another node goes on
from a copy, whose frames may end before those that readers had (`renumbered`). The last frame
carries the result. Generation does not depend on readers, of which there may be none.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import xxhash

from plexclient.samples import FRAME_BITS
from plexclient.wire.v1 import operations_pb2
from plexsvc.rollout.core.events import SampleKey
from plexsvc.rollout.engines.base import extend_spans
from plexsvc.rollout.recordfiles import RecordFile, StoredFrame

RECORD_BITS: Final = 28
"""With a frame's bits, a cursor is a number that every language counts exactly."""

FRAME_BYTES: Final = 1 << 20
"""A frame is closed at this size; far below the largest gRPC message."""


@dataclass(slots=True)
class SampleRecord:
    """What is known of one sample; `generated` counts tokens it came with."""

    key: SampleKey
    tokens: array[int] = field(default_factory=lambda: array("I"))
    had: int = 0
    versions: operations_pb2.SampleDelta = field(default_factory=operations_pb2.SampleDelta)
    """Carries only the spans of all tokens so far."""
    has_prompt_logprobs: bool = False
    pending: operations_pb2.SampleDelta | None = None
    """What the next frame has of it, but for these tokens, which are cheaper to gather in lists."""
    new_tokens: list[int] = field(default_factory=list)
    new_logprobs: list[float] = field(default_factory=list)
    is_complete: bool = False
    num_kept: int = 0
    """Spans of versions whose beginning is in the record's file."""

    def take(self) -> operations_pb2.SampleDelta:
        """Return what is pending, once."""
        delta, self.pending = self.pending, None
        assert delta is not None, self
        delta.token_ids.extend(self.new_tokens)
        delta.logprobs.extend(self.new_logprobs)
        self.new_tokens, self.new_logprobs = [], []
        return delta


class OperationRecord:
    """The token record of one generate. Owned by the event loop."""

    def __init__(
        self,
        operation: operations_pb2.Operation,
        *,
        file: RecordFile | None,
        kept: Sequence[StoredFrame] = (),
    ) -> None:
        """Begin with the frames `kept` of a manager before; without `file` none has a successor."""
        self.operation = operation
        self.frames = [entry.frame for entry in kept]
        """Serialised."""
        self._start = _new_start()
        self.result: operations_pb2.OperationResult | None = None
        self.nbytes = sum(map(len, self.frames))
        self.generated = 0
        self._file, self._kept = file, kept
        for frame in map(operations_pb2.GenerateFrame.FromString, self.frames):
            self.generated += sum(len(delta.token_ids) for delta in frame.deltas)
            self._start = frame.cursor >> FRAME_BITS << FRAME_BITS
            if frame.HasField("result"):
                self.result = frame.result
        self.dirty = asyncio.Event()
        self.samples: dict[SampleKey, SampleRecord] = {}
        self._pending: list[SampleRecord] = []
        self._changed = asyncio.Event()

    def open_samples(self, operation: operations_pb2.Operation) -> None:
        """Register every sample of the operation's prompts, with all tokens that they have."""
        self.operation = operation
        generate = operation.generate
        for index, prompt in enumerate(generate.prompts):
            for sample in range(max(1, generate.sampling.n)):
                record = SampleRecord((index, sample), array("I", prompt.generated))
                record.had = len(prompt.generated)
                self.samples[record.key] = record
        for entry in self._kept:
            self._restore(entry)

    def add(
        self, key: SampleKey, delta: operations_pb2.SampleDelta, *, known: int, is_last: bool
    ) -> None:
        """Record a sample's `delta` without its first `known` tokens."""
        sample = self.samples[key]
        if delta.cached_tokens:
            self._pend(sample).cached_tokens += delta.cached_tokens
        if known < len(delta.token_ids):
            self._append(sample, delta, known=known)
        if delta.prompt_logprobs and not sample.has_prompt_logprobs:
            self._pend(sample).prompt_logprobs.extend(delta.prompt_logprobs)
            self._pend(sample).prompt_likely.extend(delta.prompt_likely)
            sample.has_prompt_logprobs = True
        if is_last:
            sample.is_complete = True
            pending = self._pend(sample)
            pending.finish_reason = delta.finish_reason
            pending.stop_reason = delta.stop_reason
            pending.versions.extend(sample.versions.versions)

    def seal(self) -> None:
        """Close the pending deltas into frames, if there are any."""
        self.dirty.clear()
        taken, self._pending = self._pending, []
        spans = _new_spans(taken)
        for deltas in _cut(taken):
            self._add(operations_pb2.GenerateFrame(deltas=deltas), spans=spans)
            spans = b""

    def finish(self, result: operations_pb2.OperationResult) -> None:
        """Seal what is pending and end the stream with `result`."""
        self.seal()
        self.result = result
        self._add(operations_pb2.GenerateFrame(result=result))

    def discard(self) -> None:
        """Delete what a successor would read."""
        if self._file is not None:
            self._file.remove()

    async def read(self, after_cursor: int) -> AsyncGenerator[bytes]:
        """Yield the frames after `after_cursor`, then live, up to the one with the result.

        All of them, if the cursor is none of this record's.
        """
        at = after_cursor - self._start
        if not 0 <= at <= len(self.frames):
            at = 0
        while True:
            while at < len(self.frames):
                frame = self.frames[at]
                at += 1
                yield frame
            if self.result is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    def digest(self) -> bytes:
        """Return the xxh3-128 of all tokens in order."""
        hasher = xxhash.xxh3_128()
        for sample in self.samples.values():
            hasher.update(sample.tokens.tobytes())
        return hasher.digest()

    def _restore(self, entry: StoredFrame) -> None:
        """Add what a frame of the manager before has to its samples."""
        spans = operations_pb2.GenerateFrame.FromString(entry.spans)
        for delta in spans.deltas:
            sample = self.samples[delta.prompt_index, delta.sample_index]
            sample.versions.versions.extend(delta.versions)
            sample.num_kept = len(sample.versions.versions)
        for delta in operations_pb2.GenerateFrame.FromString(entry.frame).deltas:
            sample = self.samples[delta.prompt_index, delta.sample_index]
            sample.tokens.extend(delta.token_ids)
            sample.has_prompt_logprobs |= bool(delta.prompt_logprobs)
            sample.is_complete = delta.finish_reason != operations_pb2.FINISH_REASON_UNSPECIFIED
            starts = [span.start for span in sample.versions.versions[1:]]
            for span, end in zip(
                sample.versions.versions, [*starts, len(sample.tokens)], strict=True
            ):
                span.end = end

    def _append(
        self, sample: SampleRecord, delta: operations_pb2.SampleDelta, *, known: int
    ) -> None:
        pending, start, tokens = self._pend(sample), len(sample.tokens), delta.token_ids[known:]
        sample.tokens.extend(tokens)
        sample.new_tokens += tokens
        sample.new_logprobs += delta.logprobs[known:]
        if delta.texts:
            pending.texts.extend(delta.texts[known:])
        if delta.likely:
            pending.likely.extend(delta.likely[known:])
        self.generated += len(tokens)
        for span in delta.versions:
            extend_spans(sample.versions, version=span, start=max(span.start, start), end=span.end)

    def _pend(self, sample: SampleRecord) -> operations_pb2.SampleDelta:
        if sample.pending is None:
            prompt, index = sample.key
            sample.pending = operations_pb2.SampleDelta(
                prompt_index=prompt, sample_index=index, position=len(sample.tokens)
            )
            self._pending.append(sample)
            self.dirty.set()
        return sample.pending

    def _add(self, frame: operations_pb2.GenerateFrame, *, spans: bytes = b"") -> None:
        frame.cursor = self._start + len(self.frames) + 1
        data = frame.SerializeToString()
        if self._file is not None:
            self._file.append(StoredFrame(data, spans))
            if self.result is not None:
                self._file.close()
        self.frames.append(data)
        self.nbytes += len(data)
        self._changed.set()


def renumbered(entries: Iterable[StoredFrame]) -> list[StoredFrame]:
    """Return the frames of a copy as those of another record."""
    start, made = _new_start(), list[StoredFrame]()
    for number, entry in enumerate(entries, 1):
        frame = operations_pb2.GenerateFrame.FromString(entry.frame)
        frame.cursor = start + number
        made.append(StoredFrame(frame.SerializeToString(), entry.spans))
    return made


def _new_start() -> int:
    return (1 + secrets.randbelow((1 << RECORD_BITS) - 1)) << FRAME_BITS


def _new_spans(samples: Iterable[SampleRecord]) -> bytes:
    """Return where the samples' versions changed since the last frame, as deltas of a frame."""
    changed = operations_pb2.GenerateFrame()
    for sample in samples:
        spans = sample.versions.versions
        if len(spans) > sample.num_kept:
            prompt, index = sample.key
            new = spans[sample.num_kept :]
            changed.deltas.add(prompt_index=prompt, sample_index=index, versions=new)
            sample.num_kept = len(spans)
    return changed.SerializeToString()


def _cut(samples: Sequence[SampleRecord]) -> Iterator[list[operations_pb2.SampleDelta]]:
    """Yield the samples' pending deltas in groups of at most `FRAME_BYTES` (one at least)."""
    group: list[operations_pb2.SampleDelta] = []
    nbytes = 0
    for sample in samples:
        delta = sample.take()
        size = delta.ByteSize()
        if group and nbytes + size > FRAME_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(delta)
        nbytes += size
    if group:
        yield group

"""Samples that `generate` returns, assembled from the deltas of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from plexclient.batch import FloatArray
from plexclient.errors import PlexError, internal
from plexclient.sampling import is_plain
from plexclient.scores import Scores
from plexclient.wire.v1 import operations_pb2

FINISH_REASONS: Final[Mapping[int, str]] = {
    operations_pb2.FINISH_REASON_UNSPECIFIED: "",
    operations_pb2.FINISH_REASON_STOP: "stop",
    operations_pb2.FINISH_REASON_LENGTH: "length",
    operations_pb2.FINISH_REASON_ABORT: "abort",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One finished answer. `logprobs[i]` and `versions[i]` belong to `tokens[i]`.

    `finish_reason` is `stop`, `length` or `abort`; stop tokens stay in `tokens`. `versions` are the
    weight versions that produced each token, `sources` the ids of the deployments that they are of
    ("" for the weights of the model directory). `text` is there when text was asked. `temperature`,
    `top_p` (1 is all) and `top_k` (0 is all) are what it was drawn with, and `logprobs` are of that
    distribution: divided by the temperature, renormalised over the tokens that were kept.
    `is_plain` is whether nothing else shaped it: `min_p`, a penalty, a bias, or a grammar.
    """

    prompt_index: int
    sample_index: int
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: FloatArray
    versions: list[int]
    sources: list[str]
    finish_reason: str
    stop_reason: str = ""
    text: str | None = None
    prompt_logprobs: FloatArray | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    is_plain: bool = True


FRAME_BITS: Final = 24
"""A cursor's lowest bits number the frames of a record, those above are the record's own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of one sample, the first at `position`; `sample` is set when they finish it.

    Positions come once, but for those of a sample that begins anew: its service lost its record.
    """

    prompt_index: int
    sample_index: int
    position: int
    tokens: list[int]
    logprobs: list[float]
    sample: Sample | None = None


class Samples(Sequence[Sample]):
    """The samples of one `generate`: prompt by prompt, each prompt's n samples in order.

    `scores` are theirs where `generate` was asked to have them scored, else None.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        metrics: Mapping[str, float],
        scores: Scores | None = None,
    ) -> None:
        self._samples = tuple(samples)
        self.metrics = dict(metrics)
        self.scores = scores

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> Sample | Samples:
        if isinstance(index, slice):
            scores = None if self.scores is None else Scores(self.scores[index])
            return Samples(self._samples[index], metrics=self.metrics, scores=scores)
        return self._samples[index]

    def __len__(self) -> int:
        """Return how many samples there are: prompts times n."""
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def __repr__(self) -> str:
        tokens = sum(len(sample.tokens) for sample in self._samples)
        return f"Samples({len(self._samples)} samples, {tokens} tokens)"

    @property
    def num_tokens(self) -> int:
        """Return the generated tokens of all samples."""
        return sum(len(sample.tokens) for sample in self._samples)


@dataclass(slots=True)
class _Growing:
    record: int
    """The number of the record that its tokens are from."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: FloatArray | None = None
    done: Sample | None = None


class TokenRecord:
    """What has arrived of one generate: each position of each sample exactly once.

    Frames may come again after a cut; those at or below `cursor` are dropped. When the service lost
    its own record, it begins another, whose frames have other cursors: samples that had finished
    stay, the others begin anew. A sample takes room when its first tokens come, so asking for more
    than the service gives costs nothing.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        *,
        sampling: operations_pb2.SamplingParams,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.cursor = 0
        self.result: operations_pb2.OperationResult | None = None
        self._prompts = prompts
        self._decode = decode
        self._num_samples = sampling.n
        self._drawn: dict[str, Any] = {
            "temperature": float(f"{sampling.temperature:.7g}"),  # float32 on the wire
            # 0 on the wire is a top_p that nobody gave: all.
            "top_p": float(f"{sampling.top_p:.7g}") or 1.0,
            "top_k": max(0, sampling.top_k),
            "is_plain": is_plain(sampling),
        }
        self._growing: dict[tuple[int, int], _Growing] = {}

    def add(self, frame: operations_pb2.GenerateFrame) -> list[Delta]:
        """Return what is new in `frame`.

        Raises:
            PlexError: `internal` when positions are missing or samples were never asked for.
        """
        record = frame.cursor >> FRAME_BITS
        if record != self.cursor >> FRAME_BITS:
            finished = {key: one for key, one in self._growing.items() if one.done is not None}
            self._growing = finished
        elif frame.cursor <= self.cursor:
            return []
        self.cursor = frame.cursor
        if frame.HasField("result"):
            self.result = frame.result
        grown = [self._grow(delta, record=record) for delta in frame.deltas]
        return [delta for delta in grown if delta is not None]

    def samples(self) -> Samples:
        """Return all samples in order.

        Raises:
            PlexError: `internal` when the stream ended before they all did.
        """
        done = {key: g.done for key, g in self._growing.items() if g.done is not None}
        missing = len(self._prompts) * self._num_samples - len(done)
        if missing:
            first = next(key for key in self._keys() if key not in done)
            raise _broken(
                f"the stream ended with {missing} samples unfinished, the first is {first}"
            )
        metrics = dict(self.result.metrics) if self.result is not None else {}
        return Samples([done[key] for key in self._keys()], metrics=metrics)

    def _keys(self) -> Iterator[tuple[int, int]]:
        return ((p, i) for p in range(len(self._prompts)) for i in range(self._num_samples))

    def _grow(self, delta: operations_pb2.SampleDelta, *, record: int) -> Delta | None:
        """Add a delta; return what is new, None where an earlier record had finished the sample."""
        key = (delta.prompt_index, delta.sample_index)
        if key[0] >= len(self._prompts) or key[1] >= self._num_samples:
            raise _broken(f"tokens came for sample {key}, which was not asked for")
        growing = self._growing.setdefault(key, _Growing(record))
        if growing.record != record:
            return None
        if growing.done is not None:
            raise _broken(f"tokens came for sample {key}, which had finished")
        if delta.position != len(growing.tokens) or len(delta.logprobs) != len(delta.token_ids):
            raise _broken(
                f"sample {key} has {len(growing.tokens)} tokens; {len(delta.token_ids)} tokens "
                f"with {len(delta.logprobs)} logprobs came for position {delta.position}"
            )
        growing.tokens.extend(delta.token_ids)
        growing.logprobs.extend(delta.logprobs)
        if delta.prompt_logprobs:
            growing.prompt_logprobs = np.array(delta.prompt_logprobs, np.float32)
        if delta.finish_reason != operations_pb2.FINISH_REASON_UNSPECIFIED:
            growing.done = self._finish(growing, delta)
        return Delta(
            prompt_index=delta.prompt_index,
            sample_index=delta.sample_index,
            position=delta.position,
            tokens=list(delta.token_ids),
            logprobs=list(delta.logprobs),
            sample=growing.done,
        )

    def _finish(self, growing: _Growing, last: operations_pb2.SampleDelta) -> Sample:
        spans = spans_of_tokens(last.versions, num_tokens=len(growing.tokens))
        return Sample(
            prompt_index=last.prompt_index,
            sample_index=last.sample_index,
            prompt_tokens=list(self._prompts[last.prompt_index]),
            tokens=growing.tokens,
            logprobs=_frozen(growing.logprobs),
            versions=[span.version for span in spans],
            sources=[span.deployment_id for span in spans],
            finish_reason=FINISH_REASONS.get(last.finish_reason, ""),
            stop_reason=last.stop_reason,
            text=self._decode(growing.tokens) if self._decode else None,
            prompt_logprobs=growing.prompt_logprobs,
            **self._drawn,
        )


def spans_of_tokens(
    spans: Sequence[operations_pb2.VersionSpan], *, num_tokens: int
) -> list[operations_pb2.VersionSpan]:
    """Return the span of versions that each token lies in.

    Raises:
        PlexError: `internal` when the spans do not cover the tokens exactly.
    """
    found: list[operations_pb2.VersionSpan] = []
    for span in sorted(spans, key=lambda span: span.start):
        if span.start != len(found) or span.end < span.start:
            raise _broken(f"version span [{span.start}, {span.end}) follows token {len(found)}")
        found.extend([span] * (span.end - span.start))
    if len(found) != num_tokens:
        raise _broken(f"version spans cover {len(found)} of {num_tokens} tokens")
    return found


def _frozen(values: Sequence[float]) -> npt.NDArray[np.float32]:
    array = np.array(values, np.float32)
    array.setflags(write=False)
    return array


def _broken(found: str) -> PlexError:
    return internal(
        f"the token stream contradicts itself: {found}; report it with the operation's id"
    )

"""The token record: each position once, whatever frames repeat."""

from __future__ import annotations

import numpy as np
import pytest

from plexclient import sampling
from plexclient.errors import PlexError
from plexclient.samples import FRAME_BITS, TokenRecord, spans_of_tokens
from plexclient.wire.v1 import operations_pb2

SamplingParams = operations_pb2.SamplingParams
STOP = operations_pb2.FINISH_REASON_STOP


def frame(cursor: int, *deltas: operations_pb2.SampleDelta) -> operations_pb2.GenerateFrame:
    return operations_pb2.GenerateFrame(cursor=cursor, deltas=deltas)


def delta(
    position: int, tokens: list[int], *, sample: int = 0, done: bool = False
) -> operations_pb2.SampleDelta:
    made = operations_pb2.SampleDelta(
        sample_index=sample, position=position, token_ids=tokens, logprobs=[-0.5] * len(tokens)
    )
    if done:
        made.finish_reason = STOP
        made.versions.add(version=3, start=0, end=position + len(tokens), deployment_id="job/a")
    return made


def last(cursor: int) -> operations_pb2.GenerateFrame:
    return operations_pb2.GenerateFrame(
        cursor=cursor, result=operations_pb2.OperationResult(metrics={"samples": 2})
    )


def test_samples_come_in_order_with_a_version_for_each_token() -> None:
    record = TokenRecord([[9]], sampling=SamplingParams(n=2))
    record.add(frame(1, delta(0, [5, 6], sample=1), delta(0, [1])))
    news = record.add(frame(2, delta(1, [2], done=True), delta(2, [], sample=1, done=True)))
    record.add(last(3))
    samples = record.samples()
    assert [sample.tokens for sample in samples] == [[1, 2], [5, 6]]
    assert [sample.versions for sample in samples] == [[3, 3], [3, 3]]
    assert [sample.sources for sample in samples] == [["job/a"] * 2] * 2
    assert [new.sample is not None for new in news] == [True, True]
    assert samples[0].finish_reason == "stop"
    assert samples[0].prompt_tokens == [9]
    assert samples[0].logprobs.tolist() == [-0.5, -0.5]
    assert samples.metrics == {"samples": 2}
    assert samples[1:].num_tokens == 2


def test_samples_say_what_they_were_drawn_with() -> None:
    asked = sampling.to_wire(temperature=0.7, top_p=0.9, top_k=5)
    record = TokenRecord([[9]], sampling=asked)
    record.add(frame(1, delta(0, [1], done=True)))
    record.add(last(2))
    (found,) = record.samples()
    assert (found.temperature, found.top_p, found.top_k) == (0.7, 0.9, 5)
    record = TokenRecord([[9]], sampling=sampling.to_wire())
    record.add(frame(1, delta(0, [1], done=True)))
    record.add(last(2))
    (found,) = record.samples()
    assert (found.temperature, found.top_p, found.top_k) == (1.0, 1.0, 0)


def test_frames_that_come_again_add_nothing() -> None:
    record = TokenRecord([[9]], sampling=SamplingParams(n=1))
    first = frame(1, delta(0, [1, 2]))
    assert len(record.add(first)) == 1
    assert record.add(first) == []
    record.add(frame(2, delta(2, [3], done=True)))
    record.add(last(3))
    assert record.samples()[0].tokens == [1, 2, 3]


def test_another_record_keeps_what_had_finished_and_begins_the_rest_anew() -> None:
    record, other = TokenRecord([[9]], sampling=SamplingParams(n=2)), 7 << FRAME_BITS
    record.add(frame(1, delta(0, [1, 2], done=True), delta(0, [5, 6], sample=1)))
    news = record.add(frame(other + 1, delta(0, [3]), delta(0, [7], sample=1)))
    assert [(new.sample_index, new.position, new.tokens) for new in news] == [(1, 0, [7])]
    record.add(frame(other + 2, delta(1, [4], done=True), delta(1, [8], sample=1, done=True)))
    record.add(last(other + 3))
    assert [sample.tokens for sample in record.samples()] == [[1, 2], [7, 8]]


def test_text_is_decoded_when_the_sample_is_finished() -> None:
    record = TokenRecord(
        [[9]], sampling=SamplingParams(n=1), decode=lambda ids: "".join(map(chr, ids))
    )
    record.add(frame(1, delta(0, [0x48, 0xE9, 0x1F600], done=True)))
    record.add(last(2))
    assert record.samples()[0].text == "Hé😀"


def test_prompt_logprobs_are_kept_when_they_come() -> None:
    record = TokenRecord([[9, 8]], sampling=SamplingParams(n=1))
    first = delta(0, [1], done=True)
    first.prompt_logprobs.extend([-1.0, -2.0])
    record.add(frame(1, first))
    record.add(last(2))
    np.testing.assert_array_equal(record.samples()[0].prompt_logprobs, [-1.0, -2.0])


@pytest.mark.parametrize(
    "bad",
    [
        delta(1, [1]),
        delta(0, [1], sample=7),
        operations_pb2.SampleDelta(token_ids=[1, 2], logprobs=[-1.0]),
    ],
)
def test_a_stream_that_contradicts_itself_is_refused(bad: operations_pb2.SampleDelta) -> None:
    record = TokenRecord([[9]], sampling=SamplingParams(n=1))
    with pytest.raises(PlexError, match="contradicts itself"):
        record.add(frame(1, bad))


def test_unfinished_samples_are_not_returned() -> None:
    record = TokenRecord([[9]], sampling=SamplingParams(n=1))
    record.add(frame(1, delta(0, [1])))
    with pytest.raises(PlexError, match="1 samples unfinished"):
        record.samples()


def test_a_record_of_more_samples_than_memory_has_room_for_takes_none_before_they_come() -> None:
    record = TokenRecord([[9]], sampling=SamplingParams(n=2**32 - 1))
    record.add(frame(1, delta(0, [1], sample=10**9, done=True)))
    with pytest.raises(PlexError, match="4294967294 samples unfinished, the first is \\(0, 0\\)"):
        record.samples()


def span(version: int, start: int, end: int) -> operations_pb2.VersionSpan:
    return operations_pb2.VersionSpan(version=version, start=start, end=end)


def test_version_spans_spread_over_tokens() -> None:
    spans = spans_of_tokens([span(2, 1, 3), span(1, 0, 1)], num_tokens=3)
    assert [found.version for found in spans] == [1, 2, 2]


@pytest.mark.parametrize(
    "spans", [[], [span(1, 0, 2)], [span(1, 1, 3)], [span(1, 0, 2), span(2, 1, 3)]]
)
def test_version_spans_must_cover_every_token_once(
    spans: list[operations_pb2.VersionSpan],
) -> None:
    with pytest.raises(PlexError, match="version span"):
        spans_of_tokens(spans, num_tokens=3)

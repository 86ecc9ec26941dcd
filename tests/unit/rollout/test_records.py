"""The token record: each position once, frames that never change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexclient.samples import FRAME_BITS
from plexclient.wire.v1 import operations_pb2
from plexsvc.ids import VersionId
from plexsvc.rollout.engines.base import FINISH_ABORT, FINISH_LENGTH, extend_spans
from plexsvc.rollout.generation import UNFINISHED
from plexsvc.rollout.records import FRAME_BYTES, OperationRecord
from tests.rigs.rollout_bench import new_record
from tests.rigs.rollout_requests import collect

TOKENS = list(range(100, 140))


def frames_of(made: OperationRecord) -> list[operations_pb2.GenerateFrame]:
    return [operations_pb2.GenerateFrame.FromString(frame) for frame in made.frames]


def numbers_of(frames: list[operations_pb2.GenerateFrame]) -> list[int]:
    """Return the numbers of a record's frames, which all name one record."""
    assert len({frame.cursor >> FRAME_BITS for frame in frames}) == 1
    return [frame.cursor % (1 << FRAME_BITS) for frame in frames]


def record(*, generated: int = 0, samples: int = 1) -> OperationRecord:
    prompt = operations_pb2.Prompt(token_ids=[1], generated=TOKENS[:generated])
    sampling = operations_pb2.SamplingParams(n=samples, max_tokens=40)
    operation = operations_pb2.Operation(
        operation_id=bytes(16),
        generate=operations_pb2.Generate(prompts=[prompt], sampling=sampling),
    )
    made = new_record(operation)
    made.open_samples(operation)
    return made


def delta(
    start: int,
    end: int,
    *,
    version: int = 1,
    finish: operations_pb2.FinishReason = operations_pb2.FINISH_REASON_UNSPECIFIED,
) -> operations_pb2.SampleDelta:
    made = operations_pb2.SampleDelta(
        position=start,
        token_ids=TOKENS[start:end],
        logprobs=[-t for t in TOKENS[start:end]],
        finish_reason=finish,
    )
    extend_spans(made, version=VersionId("job/actor", 1, version), start=start, end=end)
    return made


def add(made: OperationRecord, given: operations_pb2.SampleDelta) -> None:
    """Add what is new, as the core orders."""
    key = (given.prompt_index, given.sample_index)
    known = len(made.samples[key].tokens) - given.position
    made.add(key, given, known=known, is_last=given.finish_reason not in UNFINISHED)


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 15), st.booleans()), max_size=30))
def test_whatever_is_repeated_each_position_is_recorded_once(
    calls: list[tuple[int, int, bool]],
) -> None:
    made = record()
    for start, count, seal in calls:
        end = min(40, start + count)
        if start <= len(made.samples[0, 0].tokens):
            add(made, delta(start, end))
        if seal:
            made.seal()
    add(made, delta(len(made.samples[0, 0].tokens), 40, finish=FINISH_LENGTH))
    made.finish(operations_pb2.OperationResult())
    answer = collect(d for frame in frames_of(made) for d in frame.deltas)[0, 0]
    assert answer.tokens == TOKENS
    assert answer.logprobs == [-t for t in TOKENS]
    assert answer.versions == [1] * 40
    assert made.generated == 40


def test_versions_come_on_the_last_delta_and_span_instances() -> None:
    made = record()
    add(made, delta(0, 5, version=3))
    add(made, delta(3, 8, version=4))
    made.seal()
    assert not frames_of(made)[0].deltas[0].versions
    add(made, delta(8, 9, version=4, finish=FINISH_LENGTH))
    made.seal()
    spans = [(s.version, s.start, s.end) for s in frames_of(made)[1].deltas[0].versions]
    assert spans == [(3, 0, 5), (4, 5, 9)]


def test_an_aborted_call_does_not_finish_its_sample() -> None:
    made = record()
    aborted, complete = delta(0, 5, finish=FINISH_ABORT), delta(5, 6, finish=FINISH_LENGTH)
    add(made, aborted)
    made.seal()
    add(made, complete)
    made.seal()
    reasons = [frame.deltas[0].finish_reason for frame in frames_of(made)]
    assert reasons == [operations_pb2.FINISH_REASON_UNSPECIFIED, FINISH_LENGTH]


def test_a_sample_that_came_with_tokens_starts_after_them() -> None:
    made = record(generated=6)
    add(made, delta(6, 9, finish=FINISH_LENGTH))
    made.seal()
    assert frames_of(made)[0].deltas[0].position == 6
    assert list(frames_of(made)[0].deltas[0].token_ids) == TOKENS[6:9]
    assert made.generated == 3


def test_a_frame_is_cut_before_it_grows_too_large() -> None:
    made = record(samples=3)
    for index in range(3):
        many = operations_pb2.SampleDelta(
            sample_index=index, prompt_logprobs=[-1.0] * (FRAME_BYTES // 8)
        )
        add(made, many)
    made.seal()
    assert [len(frame.deltas) for frame in frames_of(made)] == [1, 1, 1]
    assert numbers_of(frames_of(made)) == [1, 2, 3]


async def test_a_reader_that_comes_late_or_never_changes_nothing() -> None:
    made = record()
    add(made, delta(0, 3))
    made.seal()
    add(made, delta(3, 4, finish=FINISH_LENGTH))
    made.finish(operations_pb2.OperationResult(weight_version=9))
    frames = [operations_pb2.GenerateFrame.FromString(frame) async for frame in made.read(0)]
    assert numbers_of(frames) == [1, 2, 3]
    assert [frame async for frame in made.read(frames[1].cursor)] == made.frames[2:]
    assert [frame async for frame in made.read(frames[2].cursor)] == []
    assert made.nbytes == sum(frame.ByteSize() for frame in frames)


async def test_a_reader_of_another_record_gets_every_frame() -> None:
    lost, made = record(), record()
    for one in (lost, made):
        add(one, delta(0, 3))
        one.seal()
        add(one, delta(3, 4, finish=FINISH_LENGTH))
        one.finish(operations_pb2.OperationResult())
    assert [frame async for frame in made.read(frames_of(lost)[1].cursor)] == made.frames

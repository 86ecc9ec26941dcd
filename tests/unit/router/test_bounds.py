"""Bounds of requests: every number has one, and what lies outside is refused with its name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router import bounds
from plexsvc.router.control import SERVICE

REQUESTS = [method.input_type for method in SERVICE.methods]
LARGEST = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_FLOAT: 3e38,
    FieldDescriptor.CPPTYPE_DOUBLE: 1e300,
}


def messages(of: Descriptor, seen: set[str]) -> Iterator[Descriptor]:
    """Yield every message that one is made of, itself included."""
    if of.full_name in seen:
        return
    seen.add(of.full_name)
    yield of
    for field in of.fields:
        if field.message_type is not None:
            yield from messages(field.message_type, seen)


def inner(field: FieldDescriptor) -> FieldDescriptor:
    """Return what a field holds: of a map, its values."""
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return field.message_type.fields_by_name["value"] if is_map else field


NAMED = {
    f"{message.name}.{field.name}"
    for request in REQUESTS
    for message in messages(request, set())
    if not message.GetOptions().map_entry
    for field in message.fields
    if inner(field).cpp_type in LARGEST
}


def test_every_number_of_every_request_has_a_bound_and_no_bound_is_of_nothing() -> None:
    assert set(bounds.NUMBERS) | bounds.UNBOUNDED == NAMED


def filled(name: str, value: float) -> Message:
    """Return the message of a field with that field set."""
    message_name, _, field_name = name.partition(".")
    seen: set[str] = set()
    found = (m for request in REQUESTS for m in messages(request, seen) if m.name == message_name)
    message: Any = GetMessageClass(next(found))()
    field = message.DESCRIPTOR.fields_by_name[field_name]
    if field.message_type is not None:
        keys = field.message_type.fields_by_name["key"]
        getattr(message, field_name)[1 if keys.cpp_type in LARGEST else "x"] = value
    elif field.is_repeated:
        getattr(message, field_name).append(value)
    else:
        setattr(message, field_name, value)
    assert isinstance(message, Message)
    return message


def largest(name: str) -> float:
    message = filled(name, 1)
    field = message.DESCRIPTOR.fields_by_name[name.partition(".")[2]]
    if field.message_type is not None:
        field = field.message_type.fields_by_name["value"]
    return LARGEST[field.cpp_type]


@pytest.mark.parametrize("name", sorted(bounds.NUMBERS))
def test_the_largest_number_the_wire_takes_is_refused_where_it_means_nothing(name: str) -> None:
    bound, value = bounds.NUMBERS[name], largest(name)
    if value <= bound.high:
        bounds.check(filled(name, value))
        return
    with pytest.raises(PlexError, match=rf"{name} is .* may be") as refused:
        bounds.check(filled(name, value))
    assert refused.value.code is ErrorCode.BAD_REQUEST
    bounds.check(filled(name, type(value)(bound.high)))


def test_a_refusal_writes_the_bound_as_one_would_type_it() -> None:
    with pytest.raises(PlexError, match=r"it may be 0 to 16777216$"):
        bounds.check(ops.SamplingParams(max_tokens=1_000_000_000))


def test_no_number_that_others_pay_for_has_the_bound_of_its_type_alone() -> None:
    unlimited = {name for name in bounds.NUMBERS if largest(name) <= bounds.NUMBERS[name].high}
    assert unlimited == {
        "BatchRules.max_sequence_length",  # filled by the router
        "BatchRules.vocab_size",
        "DeploymentSpec.seed",
        "DispatchPlan.lengths",  # made by the router
        "DispatchPlan.version",
        "EndJobRequest.exit_code",
        "FetchResultRequest.shard",
        "MicroBatch.sequences",
        "Prompt.generated",  # as many as the message has bytes
        "Prompt.token_ids",
        "SamplingParams.seed",
        "SamplingParams.stop_token_ids",
        "SamplingParams.top_k",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(PlexError, match=r"ForwardBackward\.loss_args"):
        bounds.check(ops.Operation(forward_backward=ops.ForwardBackward(loss_args={"clip": value})))
    with pytest.raises(PlexError, match=r"CreateJobRequest\.max_slowdown"):
        bounds.check(pb.CreateJobRequest(max_slowdown=value))
    bounds.check(pb.KeepAliveRequest(metrics={"loss": value}))


@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.nan), (1.0, math.nan, 2.0)])
def test_what_is_no_number_is_refused_wherever_it_stands(values: tuple[float, ...]) -> None:
    assert not bounds.FINITE.holds(values)


def test_a_temperature_that_float32_could_not_divide_by_is_refused() -> None:
    with pytest.raises(PlexError, match=r"ForwardBackward\.temperature"):
        bounds.check(ops.ForwardBackward(temperature=1e-38))
    bounds.check(ops.ForwardBackward(temperature=0))


def test_texts_are_bounded_wherever_they_stand() -> None:
    long = "x" * (bounds.MAX_TEXT_CHARS + 1)
    for request in (
        pb.EndJobRequest(reason=long),
        pb.CreateJobRequest(labels={"a": long}),
        ops.Operation(save=ops.Save(path=long)),
        ops.Operation(generate=ops.Generate(sampling=ops.SamplingParams(stop=["a", long]))),
    ):
        with pytest.raises(PlexError, match="characters"):
            bounds.check(request)
    bounds.check(ops.Generate(prompts=[ops.Prompt(text=long)]))

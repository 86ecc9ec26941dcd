"""Spans of an operation: parts that follow one another, under its caller's span."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.state import Operation
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind
from plexsvc.traces.spans import spans_of

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def operation(**given: object) -> Operation:
    return Operation(
        operation_id=OperationId(bytes(range(16))),
        deployment_id=DeploymentId("dep-1"),
        job_id=JobId("job-1"),
        seq=3,
        kind=OperationKind.STEP,
        after=(),
        submitted_us=100,
        **given,  # type: ignore[arg-type]
    )


def test_the_parts_of_an_operation_follow_one_another() -> None:
    whole, *parts = spans_of(
        operation(eligible_us=150, granted_us=400, started_us=900, finished_us=1_500),
        {"plex.job": "math"},
        end_us=1_600,
    )
    assert (whole.name, whole.start_us, whole.end_us) == ("step", 100, 1_600)
    assert [(part.name, part.start_us, part.end_us) for part in parts] == [
        ("inputs", 100, 150),
        ("queue", 150, 400),
        ("switch", 400, 900),
        ("execute", 900, 1_500),
    ]
    assert {part.parent_id for part in parts} == {whole.span_id}
    assert len({span.span_id for span in (whole, *parts)}) == 5


def test_what_took_no_time_or_was_not_come_to_has_no_part() -> None:
    at_once = operation(eligible_us=100, granted_us=100, started_us=100, finished_us=700)
    assert [span.name for span in spans_of(at_once, {}, end_us=700)] == ["step", "execute"]
    fault = Fault(code=ErrorCode.CANCELLED, message="nobody wants it")
    whole, *parts = spans_of(operation(eligible_us=120), {}, end_us=500, fault=fault)
    assert [(part.name, part.end_us) for part in parts] == [("inputs", 120), ("queue", 500)]
    assert whole.error == "cancelled: nobody wants it"


def test_a_trace_is_the_callers() -> None:
    whole, *_ = spans_of(operation(traceparent=CALLER), {}, end_us=500)
    assert whole.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert whole.parent_id == 0xB7AD6B7169203331


@pytest.mark.parametrize(
    "given",
    ["", "00", CALLER.upper(), CALLER[:-3], f"00-{0:032x}-b7ad6b7169203331-01", f"ff{CALLER[2:]}"],
)
def test_a_damaged_caller_is_passed_over(given: str) -> None:
    whole, *_ = spans_of(operation(traceparent=given), {}, end_us=500)
    assert whole.trace_id == int.from_bytes(bytes(range(16)))
    assert whole.parent_id is None

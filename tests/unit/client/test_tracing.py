"""Trace context of the caller."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider

from plexclient.tracing import traceparent


def test_it_names_the_span_that_is_open() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("epoch") as span:
        found = traceparent()
    context = span.get_span_context()
    assert found.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


def test_without_a_span_there_is_none() -> None:
    assert traceparent() == ""

"""Trace context of the caller: what ties an operation to the span in which it was submitted."""

from __future__ import annotations

import sys


def traceparent() -> str:
    """Return the caller's span in the form of W3C Trace Context; empty where there is none.

    Only a program that has imported OpenTelemetry has spans, so nothing is imported for it here.
    """
    if "opentelemetry.trace" not in sys.modules:
        return ""
    from opentelemetry.trace.propagation import tracecontext

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")

"""Export of spans: to a collector by OTLP over HTTP, or as lines of a file that a collector reads.

What `OTEL_EXPORTER_OTLP_*` says (headers, timeout, certificate, compression) is OpenTelemetry's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final, Protocol

from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from plexsvc.errors import internal, unavailable
from plexsvc.scheduler.driver import journal
from plexsvc.store.reader import read_journal
from plexsvc.traces.spans import Tracer, TraceSpan

BATCH: Final = 512
"""Spans that are sent at once."""

_RESOURCE: Final = Resource({"service.name": "plexsvc"})


class Sink(Protocol):
    """Where spans go."""

    def send(self, spans: Sequence[TraceSpan]) -> None:
        """Give them on.

        Raises:
            PlexError: `unavailable` when they could not be given on.
        """


class Collector:
    """An OpenTelemetry collector, or anything else that takes OTLP over HTTP."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")

    def send(self, spans: Sequence[TraceSpan]) -> None:
        """Post them; what fails for a moment is tried again."""
        if self._exporter.export([_readable(span) for span in spans]) is SpanExportResult.FAILURE:
            raise unavailable(
                f"{self._endpoint} did not take {len(spans)} spans (the log says why); check that "
                "it is the address of an OTLP/HTTP receiver, by default port 4318"
            )


class Lines:
    """A file of one OTLP request a line, as the collector's receiver `otlpjsonfile` reads."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def send(self, spans: Sequence[TraceSpan]) -> None:
        """Write one line."""
        request = encode_spans([_readable(span) for span in spans])
        self._file.write(json_format.MessageToJson(request, indent=None) + "\n")
        self._file.flush()


def export(
    source: str, sink: Sink, *, pause: Callable[[], None] | None = None, since_us: int = 0
) -> int:
    """Send the spans of a journal that end at `since_us` or later; return how many.

    With `pause`, which returns when it is time to look for new rows, the journal is followed until
    an error ends it, and so is that of a scheduler that takes over.

    Raises:
        PlexError: `internal` for a journal of another build; what `read_journal` and sinks raise.
    """
    sender = _Sender(sink, since_us=since_us)
    rows = read_journal(source)
    while True:
        epoch = rows.epoch

        def more() -> bool:
            """Return whether the scheduler of these rows may write more, a moment later."""
            if pause is None:
                return False
            sender.flush()
            pause()
            return read_journal(source).epoch == epoch  # noqa: B023 - called in this turn alone

        tail = journal.follow(rows, last=None if pause is None else 1, more=more)
        if not tail.configured.is_this_build:
            raise internal(
                f"the journal of epoch {epoch} is of another build of the scheduler; export its "
                "spans with the build that wrote it"
            )
        tracer = Tracer(tail)
        for entry in tail.entries:
            sender.add(tracer.take(entry))
        sender.flush()
        if pause is None:
            return sender.sent
        rows = read_journal(source)


class _Sender:
    """Collects spans, and sends them by the batch."""

    def __init__(self, sink: Sink, *, since_us: int) -> None:
        self._sink = sink
        self._since_us = since_us
        self._spans: list[TraceSpan] = []
        self.sent = 0

    def add(self, spans: Iterator[TraceSpan]) -> None:
        self._spans += (span for span in spans if span.end_us >= self._since_us)
        if len(self._spans) >= BATCH:
            self.flush()

    def flush(self) -> None:
        if self._spans:
            self._sink.send(self._spans)
            self.sent += len(self._spans)
            self._spans = []


def _readable(span: TraceSpan) -> ReadableSpan:
    def context(span_id: int, *, is_remote: bool) -> SpanContext:
        return SpanContext(
            trace_id=span.trace_id,
            span_id=span_id,
            is_remote=is_remote,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    is_root = "plex.job_id" in span.attributes
    return ReadableSpan(
        name=span.name,
        context=context(span.span_id, is_remote=False),
        parent=None if span.parent_id is None else context(span.parent_id, is_remote=is_root),
        resource=_RESOURCE,
        attributes=span.attributes,
        kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
        start_time=span.start_us * 1000,
        end_time=span.end_us * 1000,
    )

"""Spans of operations: where each one's time went, read off a core that replays the journal.

A span made in place would cost an operation more than its scheduling does, so none is: the journal
says all. An operation's trace is the caller's, if the operation came with a `traceparent` (W3C
Trace Context), else its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import xxhash

from plexsvc.ids import OperationId
from plexsvc.scheduler.core.actions import AnswerOperation, RefuseOperation
from plexsvc.scheduler.core.events import OperationSubmitted
from plexsvc.scheduler.core.state import Operation
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.driver.encoding import JournalEntry, JournalTail
from plexsvc.scheduler.driver.replaying import Replay

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """A stretch of one operation's life, in microseconds since the epoch."""

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    start_us: int
    end_us: int
    attributes: dict[str, str | int]
    error: str = ""
    """Why the operation was refused or failed; empty: it was applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSpan:
    operation: Operation
    attributes: dict[str, str | int]


class Tracer:
    """Follows a journal with a core of its own, and yields the spans of what ends."""

    def __init__(self, told: JournalTail) -> None:
        self._replay = Replay(told)
        self._open: dict[OperationId, _OpenSpan] = {}
        for operation in self._replay.core.view.operations.values():
            self._keep(operation)

    @property
    def idx(self) -> int:
        """The row it is behind."""
        return self._replay.idx

    def take(self, entry: JournalEntry) -> Iterator[TraceSpan]:
        """Replay an event; yield the spans of the operations that it ended."""
        self._replay.take(entry)
        event = entry.event
        if isinstance(event, OperationSubmitted):
            operation = self._replay.core.view.operations.get(event.operation_id)
            if operation is not None:
                self._keep(operation)
        for action in self._replay.actions:
            if isinstance(action, AnswerOperation | RefuseOperation):
                ended = self._open.pop(action.operation_id, None)
                if ended is not None:
                    fault = action.fault if isinstance(action, RefuseOperation) else None
                    yield from spans_of(
                        ended.operation, ended.attributes, end_us=event.at_us, fault=fault
                    )

    def _keep(self, operation: Operation) -> None:
        view = self._replay.core.view
        job = view.jobs[operation.job_id]
        deployment = view.deployments[operation.deployment_id]
        attributes: dict[str, str | int] = {
            "plex.operation_id": operation.operation_id.hex(),
            "plex.op": operation.kind,
            "plex.seq": operation.seq,
            "plex.job_id": job.job_id,
            "plex.job": job.name,
            "plex.tenant": job.tenant,
            "plex.deployment": deployment.name or deployment.deployment_id,
        }
        self._open[operation.operation_id] = _OpenSpan(operation=operation, attributes=attributes)


def spans_of(
    operation: Operation,
    attributes: dict[str, str | int],
    *,
    end_us: int,
    fault: Fault | None = None,
) -> Iterator[TraceSpan]:
    """Yield the span of an operation that ended, then its parts: inputs, queue, switch, execute.

    A part that took no time, or was not come to, is left out.
    """
    trace_id, caller = _caller(operation)
    root = _span_id(operation, "")
    tokens: dict[str, str | int] = {}
    if operation.num_tokens:
        tokens["plex.tokens"] = operation.num_tokens
    yield TraceSpan(
        trace_id=trace_id,
        span_id=root,
        parent_id=caller,
        name=operation.kind,
        start_us=operation.submitted_us,
        end_us=end_us,
        attributes=attributes | tokens,
        error="" if fault is None else f"{fault.code}: {fault.message}",
    )
    begins = {
        "inputs": operation.submitted_us,
        "queue": operation.eligible_us or 0,
        "switch": operation.granted_us,
        "execute": operation.started_us,
    }
    reached = {name: start_us for name, start_us in begins.items() if start_us}
    ends = [*list(reached.values())[1:], operation.finished_us or end_us]
    for (name, start_us), part_end_us in zip(reached.items(), ends, strict=True):
        if part_end_us > start_us:
            yield TraceSpan(
                trace_id=trace_id,
                span_id=_span_id(operation, name),
                parent_id=root,
                name=name,
                start_us=start_us,
                end_us=part_end_us,
                attributes={"plex.operation_id": operation.operation_id.hex()},
            )


def _caller(operation: Operation) -> tuple[int, int | None]:
    """Return the operation's trace and the caller's span; a damaged one is passed over (W3C)."""
    found = _TRACEPARENT.fullmatch(operation.traceparent)
    ids = tuple(int(part, 16) for part in found.groups()) if found else (0, 0)
    if all(ids):
        return ids[0], ids[1]
    return int.from_bytes(operation.operation_id), None


def _span_id(operation: Operation, part: str) -> int:
    return xxhash.xxh3_64_intdigest(operation.operation_id + part.encode())

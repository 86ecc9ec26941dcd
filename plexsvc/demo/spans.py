"""Spans of the devices' timeline, and how much of a window they cover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from plexclient.wire.v1 import service_pb2

MOVES: Final = frozenset({"load", "offload"})
"""Kinds of span that move state; all others are operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time."""

    start_us: int
    end_us: int

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.end_us - self.start_us) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpan:
    """What one device did for one job for a while."""

    device: str
    """`node:index`."""
    device_kind: str
    """`train`, `rollout` or another."""
    kind: str
    job_id: str
    start_us: int
    end_us: int

    @property
    def is_move(self) -> bool:
        """Whether it moved state rather than ran an operation."""
        return self.kind in MOVES


def from_wire(spans: Iterable[service_pb2.Span], *, kinds: Mapping[str, str]) -> list[DeviceSpan]:
    """Return the spans of the wire; `kinds` says which kind of device each `node:index` is."""
    return [
        DeviceSpan(
            device=(device := f"{span.node_id}:{span.device}"),
            device_kind=kinds.get(device, ""),
            kind=span.kind,
            job_id=span.job_id,
            start_us=span.start_us,
            end_us=span.end_us,
        )
        for span in spans
    ]


def within(spans: Iterable[DeviceSpan], window: Window) -> list[DeviceSpan]:
    """Return the spans that touch the window, cut to it."""
    return [
        replace(
            span,
            start_us=max(span.start_us, window.start_us),
            end_us=min(span.end_us, window.end_us),
        )
        for span in spans
        if span.end_us > window.start_us and span.start_us < window.end_us
    ]


def covered_s(spans: Iterable[DeviceSpan]) -> float:
    """Return the seconds in which at least one of the spans was on.

    >>> kinds = {"device": "n:0", "device_kind": "train", "kind": "step", "job_id": "j"}
    >>> a = DeviceSpan(**kinds, start_us=0, end_us=4)
    >>> b = DeviceSpan(**kinds, start_us=2, end_us=6)
    >>> round(1e6 * covered_s([b, a]))
    6
    """
    total = reached = 0
    for span in sorted(spans, key=lambda span: span.start_us):
        total += max(0, span.end_us - max(reached, span.start_us))
        reached = max(reached, span.end_us)
    return total / 1e6


def training(spans: Iterable[DeviceSpan]) -> list[DeviceSpan]:
    """Return the operations that ran on training devices."""
    return [span for span in spans if span.device_kind == "train" and not span.is_move]

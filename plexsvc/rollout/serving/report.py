"""Latencies of a serving engine, with and without a guest, and what the guest got."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from plexsvc.rollout.core.lending import Objectives

KEPT: Final = 16_384
"""Requests that percentiles are of."""

PERCENTILES: Final = (50, 90, 99)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles by nearest rank; nothing of nothing.

    >>> percentiles([1.0, 2.0, 3.0, 4.0])
    {'p50': 2.0, 'p90': 4.0, 'p99': 4.0}
    """
    ordered, count = sorted(values), len(values)
    return {f"p{p}": ordered[-(-p * count // 100) - 1] for p in PERCENTILES if count}


@dataclass(slots=True)
class Latencies:
    """Times of the newest requests, in milliseconds."""

    ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    tpot_ms: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def summary(self, objectives: Objectives) -> dict[str, Any]:
        """Return percentiles, and whether the 99th keep to the objectives."""
        found: dict[str, Any] = {"requests": len(self.ttft_ms)}
        for name in ("ttft", "tpot"):
            times = percentiles(list(getattr(self, f"{name}_ms")))
            limit_ms = getattr(objectives, f"{name}_us") / 1000
            kept = times.get("p99", 0.0) <= limit_ms
            found[name] = {**times, "objective": limit_ms, "is_kept": kept}
        return found


@dataclass(slots=True)
class LatencyLog:
    """Latencies by whether a guest was at work."""

    alone: Latencies = field(default_factory=Latencies)
    lending: Latencies = field(default_factory=Latencies)

    def add(self, *, ttfts_s: Sequence[float], tpots_s: Sequence[float], has_guest: bool) -> None:
        """Take first tokens that came and requests that ended."""
        into = self.lending if has_guest else self.alone
        into.ttft_ms.extend(1000 * one for one in ttfts_s)
        into.tpot_ms.extend(1000 * one for one in tpots_s)

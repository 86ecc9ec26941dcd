"""The trace that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

from plexsvc import perfetto
from plexsvc.demo.trace import trace_events
from tests.rigs.demo_runs import make_span


def test_a_trace_has_a_thread_for_each_device_and_an_event_for_each_span(tmp_path: Path) -> None:
    spans = [
        make_span("step", 100, 130),
        make_span("generate", 120, 220, device_kind="rollout", index=2),
    ]
    perfetto.write(tmp_path / "trace.json", trace_events(spans, names={"job-bits": "bits"}))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {
        ("process_name", 0): "node n",
        ("thread_name", 0): "train device 0",
        ("thread_name", 2): "rollout device 2",
    }
    done = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert done == [("bits: step", 0, 0, 30), ("bits: generate", 2, 20, 100)]


def test_a_trace_of_nothing_is_a_trace() -> None:
    assert trace_events([], names={}) == []

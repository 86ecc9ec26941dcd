"""Spans: cut to windows, told apart, and measured without counting an overlap twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.spans import Window, covered_s, from_wire, training, within
from tests.rigs.demo_runs import make_span

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(pairs)
def test_covered_time_equals_counting_the_points(found: list[tuple[int, int]]) -> None:
    spans = [make_span("step", start, start + length) for start, length in found]
    points = {point for start, length in found for point in range(start, start + length)}
    assert round(covered_s(spans) * 1e6) == len(points)


def test_a_window_cuts_spans_and_drops_those_outside() -> None:
    spans = [make_span("a", 0, 5), make_span("b", 4, 8), make_span("c", 9, 12)]
    cut = within(spans, Window(start_us=3, end_us=6))
    assert [(span.kind, span.start_us, span.end_us) for span in cut] == [("a", 3, 5), ("b", 4, 6)]


def test_moves_and_operations_of_training_devices_are_told_apart() -> None:
    spans = [
        make_span("load", 0, 1),
        make_span("step", 1, 2),
        make_span("offload", 2, 3),
        make_span("generate", 0, 3, device_kind="rollout", index=1),
    ]
    assert [span.kind for span in training(spans)] == ["step"]
    assert [span.is_move for span in spans] == [True, False, True, False]


def test_spans_of_the_wire_name_their_device_and_its_kind() -> None:
    wire = [service_pb2.Span(node_id="n", device=1, kind="step", job_id="j", start_us=2, end_us=3)]
    (span,) = from_wire(wire, kinds={"n:1": "train"})
    assert (span.device, span.device_kind, span.kind, span.job_id) == ("n:1", "train", "step", "j")

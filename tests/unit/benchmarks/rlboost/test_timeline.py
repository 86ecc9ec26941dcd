"""The timeline of a simulated rollout."""

from __future__ import annotations

from benchmarks.rlboost.timeline import Timeline


def test_things_happen_in_time_and_together_in_the_order_told() -> None:
    line, seen = Timeline(), list[str]()
    line.after(5, lambda: seen.append("b"))
    line.after(5, lambda: seen.append("c"))
    line.after(1, lambda: line.after(2, lambda: seen.append("a")))
    while not line.is_empty:
        line.happen()
    assert (seen, line.now_us) == (["a", "b", "c"], 5)

"""A bounded dictionary drops what was set longest ago."""

from __future__ import annotations

from plexsvc.newest import Newest


def test_the_entry_set_longest_ago_goes_first() -> None:
    kept = Newest[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3  # now the newest
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


def test_a_limit_of_zero_keeps_nothing() -> None:
    kept = Newest[str, int](0)
    kept["a"] = 1
    assert not kept

"""Stop strings are found at the token that completes them, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.engines.stopping import Stop, StopWatcher

PIECES = ["a", "b", "ab", "", "ba"]


class Table:
    """A decoder of a table; empty text reads as undecidable yet."""

    def step(self, token: int) -> str | None:
        return PIECES[token] or None


@given(
    st.lists(st.integers(0, 4), max_size=20),
    st.lists(st.sampled_from(["a", "bb", "aba", "abba"]), min_size=1, max_size=3, unique=True),
    st.integers(1, 5),
)
def test_the_stop_is_where_the_text_so_far_first_contains_one(
    tokens: list[int], stops: list[str], chunk: int
) -> None:
    expected = None
    for end in range(1, len(tokens) + 1):
        text = "".join(PIECES[t] for t in tokens[:end])
        if PIECES[tokens[end - 1]] and any(stop in text for stop in stops):
            expected = end
            break
    watcher, seen = StopWatcher(stops, Table()), 0
    found = None
    for at in range(0, len(tokens), chunk):
        hit = watcher.feed(tokens[at : at + chunk])
        if hit is not None:
            found = seen + hit.kept
            break
        seen += len(tokens[at : at + chunk])
    assert found == expected


@pytest.mark.parametrize(("min_tokens", "kept"), [(0, 1), (2, None)])
def test_a_stop_before_the_least_number_of_tokens_does_not_count(
    min_tokens: int, kept: int | None
) -> None:
    watcher = StopWatcher(["a"], Table(), min_tokens=min_tokens)
    assert watcher.feed([0, 1]) == (Stop(kept=kept, text="a") if kept else None)

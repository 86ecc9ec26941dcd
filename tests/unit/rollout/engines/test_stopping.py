"""Stop strings are found at the token that completes them, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from plexsvc.rollout.engines.stopping import (
    Stop,
    StopWatcher,
    TokenizerDecoder,
    special_tokens,
)

PIECES = ["a", "b", "ab", "", "ba"]


class Table:
    """A decoder of a table; empty text reads as undecidable yet."""

    def step(self, token: int) -> str | None:
        return PIECES[token] or None

    def spell(self, stop: str) -> str:
        return stop


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


def tokenizer() -> Tokenizer:
    """Tokens: 0 and 1 are special, 2 is `p`, 3 is `a`."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<|end|>": 1, "p": 2, "a": 3}, unk_token="p"))
    words.decoder = decoders.Fuse()
    words.add_special_tokens([AddedToken("<pad>", special=True), "<|end|>"])
    return words


@pytest.mark.parametrize(
    ("stop", "kept"),
    [("a", 4), ("pa", 4), ("pad", None), ("<pad>", 1), ("p<|end|>", 3), ("<|end|>a", 4)],
)
def test_a_special_token_is_met_whole_or_not_at_all(stop: str, kept: int | None) -> None:
    tokens = [0, 2, 1, 3] if stop != "pa" else [0, 1, 2, 3]
    words = tokenizer()
    watcher = StopWatcher([stop], TokenizerDecoder(words, special_tokens(words)))
    assert watcher.feed(tokens) == (Stop(kept=kept, text=stop) if kept else None)

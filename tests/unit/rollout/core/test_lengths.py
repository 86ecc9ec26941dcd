"""Expected lengths of prompts over epochs."""

from __future__ import annotations

import pytest

from plexsvc.rollout.core.lengths import LengthHistory


def test_before_the_first_epoch_the_reference_is_expected() -> None:
    history = LengthHistory()
    assert history.expect(b"a", reference=70) == 70
    history.observe(b"b", [10, 20])
    assert history.expect(b"a", reference=70) == 70


@pytest.mark.parametrize(("newest", "expected"), [(1.0, 300), (0.5, 200), (0.25, 150)])
def test_later_epochs_count_for_what_they_are_set_to(newest: float, expected: int) -> None:
    history = LengthHistory(newest=newest)
    history.observe(b"a", [50, 150])
    history.observe(b"a", [300])
    assert history.expect(b"a", reference=1) == expected


def test_the_prompt_not_seen_for_longest_is_forgotten() -> None:
    history = LengthHistory(max_prompts=2)
    for name in (b"a", b"b", b"a", b"c"):
        history.observe(name, [5])
    found = [history.expect(name, reference=0) for name in (b"a", b"b", b"c")]
    assert found == [5, 0, 5]


def test_what_was_seen_counts_more_than_what_a_client_expects() -> None:
    history = LengthHistory()
    history.observe(b"a", [40])
    assert history.expect_all([b"a", b"b"], [7, 8]) == (40, 8)
    assert history.expect_all([], [7, 8]) == (), "nothing is planned"

"""Dealing samples: all are dealt, loads are level, prompts stay together where they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.core.dealing import deal


@given(
    st.integers(1, 12),
    st.integers(1, 8),
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
)
def test_every_sample_is_dealt_once_to_the_least_loaded(
    prompts: int, samples: int, loads: list[int]
) -> None:
    keys = [(p, s) for p in range(prompts) for s in range(samples)]
    hands = deal(keys, loads)
    assert sorted(key for hand in hands for key in hand) == keys
    after = [load + len(hand) for load, hand in zip(loads, hands, strict=True)]
    dealt = [total for total, hand in zip(after, hands, strict=True) if hand]
    assert max(dealt) - min(after) <= samples


def test_a_prompt_stays_on_one_instance_when_there_are_enough_of_them() -> None:
    keys = [(p, s) for p in range(6) for s in range(4)]
    for hand in deal(keys, [0, 0, 0]):
        assert len({p for p, _ in hand}) == 2

"""Dealing samples: all are dealt, loads are level, prompts stay together where they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.core.dealing import deal


@given(
    st.integers(1, 12),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=5),
)
def test_every_sample_is_dealt_once_to_the_least_loaded_with_room(
    prompts: int, samples: int, instances: list[tuple[int, int]]
) -> None:
    keys = [(p, s) for p in range(prompts) for s in range(samples)]
    loads, rooms = [load for load, _ in instances], [room for _, room in instances]
    hands, left = deal(keys, loads, rooms)
    assert sorted([key for hand in hands for key in hand] + left) == keys
    free = [room - len(hand) for room, hand in zip(rooms, hands, strict=True)]
    assert min(free) >= 0
    assert not left or not any(free)
    after = [load + len(hand) for load, hand in zip(loads, hands, strict=True)]
    open_ones = [total for total, room in zip(after, free, strict=True) if room]
    dealt = [total for total, hand in zip(after, hands, strict=True) if hand]
    if dealt and open_ones:
        assert max(dealt) - min(open_ones) <= samples


def test_a_prompt_stays_on_one_instance_when_there_are_enough_of_them() -> None:
    keys = [(p, s) for p in range(6) for s in range(4)]
    hands, left = deal(keys, [0, 0, 0], [99, 99, 99])
    assert not left
    for hand in hands:
        assert len({p for p, _ in hand}) == 2

"""Dealing samples: all are dealt, loads are level, prompts stay together where they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.core.dealing import deal, deal_turns


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


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=5
    ),
    st.integers(0, 4),
)
def test_a_turn_stays_with_its_prefix_unless_a_faster_instance_is_the_least_loaded(
    instances: list[tuple[int, int, int]], cached: int
) -> None:
    loads, rooms, slowness = map(list, zip(*instances, strict=True))
    hands, left = deal_turns([(0, 0)], loads, rooms, slowness=slowness, cached=cached)
    if not any(rooms):
        assert left == [(0, 0)]
        return
    (chosen,) = [one for one, hand in enumerate(hands) if hand]
    weight = {i: (loads[i] + 1) * slowness[i] for i, room in enumerate(rooms) if room}
    least = [i for i, one in weight.items() if one == min(weight.values())]
    if chosen == cached:
        assert any(slowness[cached] <= slowness[one] for one in least)
    else:
        assert chosen in least
        assert cached not in weight or slowness[chosen] < slowness[cached]

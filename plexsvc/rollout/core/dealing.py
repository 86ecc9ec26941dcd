"""Assignment of samples to instances: the shortest queue with room, or where the prefix is."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from plexsvc.rollout.core.events import SampleKey


def deal(
    keys: Sequence[SampleKey],
    loads: Sequence[int],
    rooms: Sequence[int],
    *,
    slowness: Sequence[int] | None = None,
) -> tuple[list[list[SampleKey]], list[SampleKey]]:
    """Return which keys each instance gets, and those that no instance has room for.

    `loads` are the samples that each has, `rooms` how many more it takes, `slowness` how many times
    as long as on the fastest each of them takes. Samples of one prompt
    stay together, where its prefill is cached, unless that would leave an instance idle or they
    do not fit. `O((keys + instances) log instances)`.

    >>> deal([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 0], [9, 9])
    ([[(0, 0), (0, 1)], [(1, 0), (1, 1)]], [])
    >>> deal([(0, 0), (0, 1)], [0, 0], [9, 9])
    ([[(0, 0)], [(0, 1)]], [])
    >>> deal([(0, 0), (0, 1), (1, 0)], [0, 4], [1, 1])
    ([[(0, 0)], [(0, 1)]], [(1, 0)])
    >>> deal([(0, 0), (0, 1), (0, 2), (0, 3)], [0, 0], [9, 9], slowness=[3, 1])
    ([[(0, 2)], [(0, 0), (0, 1), (0, 3)]], [])
    """
    groups = _groups(keys, instances=len(loads))
    room = list(rooms)
    hands: list[list[SampleKey]] = [[] for _ in loads]
    weights = slowness or [1] * len(loads)
    queues = [
        ((load + 1) * weights[index], index) for index, load in enumerate(loads) if room[index] > 0
    ]
    heapq.heapify(queues)
    while groups and queues:
        queue, index = heapq.heappop(queues)
        group = groups.popleft()
        hand, rest = group[: room[index]], group[room[index] :]
        hands[index] += hand
        room[index] -= len(hand)
        if rest:
            groups.appendleft(rest)
        if room[index]:
            heapq.heappush(queues, (queue + len(hand) * weights[index], index))
    return hands, [key for group in groups for key in group]


def deal_turns(
    keys: Sequence[SampleKey],
    loads: Sequence[int],
    rooms: Sequence[int],
    *,
    slowness: Sequence[int],
    cached: int | None,
) -> tuple[list[list[SampleKey]], list[SampleKey]]:
    """Return which turns each instance gets, and those that no instance has room for.

    Each goes where its prefix is `cached`, if there is room and no faster one is the least loaded;
    else to the least loaded. `O(keys * instances)`: a session has one turn at a time.

    >>> deal_turns([(0, 0), (0, 1)], [5, 0], [1, 1], slowness=[1, 1], cached=0)
    ([[(0, 0)], [(0, 1)]], [])
    >>> deal_turns([(0, 0)], [5, 0], [0, 0], slowness=[1, 1], cached=0)
    ([[], []], [(0, 0)])
    >>> deal_turns([(0, 0)], [1, 2], [9, 9], slowness=[3, 1], cached=0)
    ([[], [(0, 0)]], [])
    """
    hands: list[list[SampleKey]] = [[] for _ in loads]
    left: list[SampleKey] = []
    for key in keys:
        free = [one for one, room in enumerate(rooms) if len(hands[one]) < room]
        if not free:
            left.append(key)
            continue
        chosen = min(free, key=lambda one: (loads[one] + len(hands[one]) + 1) * slowness[one])
        if cached is not None and cached in free and slowness[cached] <= slowness[chosen]:
            chosen = cached
        hands[chosen].append(key)
    return hands, left


def _groups(keys: Iterable[SampleKey], *, instances: int) -> deque[list[SampleKey]]:
    """Return the keys prompt by prompt, or one by one where there are fewer prompts."""
    prompts: dict[int, list[SampleKey]] = {}
    for key in keys:
        prompts.setdefault(key[0], []).append(key)
    if len(prompts) >= instances:
        return deque(prompts.values())
    return deque([key] for keys in prompts.values() for key in keys)

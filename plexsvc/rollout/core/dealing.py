"""Assignment of samples to instances by load."""

from __future__ import annotations

from collections.abc import Sequence

from plexsvc.rollout.core.events import SampleKey


def deal(keys: Sequence[SampleKey], loads: Sequence[int]) -> list[list[SampleKey]]:
    """Return which keys each instance gets, given how many samples each has.

    Samples of one prompt stay together, where its prefill is cached, unless that would leave an
    instance idle.

    >>> deal([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 0])
    [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    >>> deal([(0, 0), (0, 1)], [0, 0])
    [[(0, 0)], [(0, 1)]]
    """
    prompts: dict[int, list[SampleKey]] = {}
    for key in keys:
        prompts.setdefault(key[0], []).append(key)
    groups = list(prompts.values()) if len(prompts) >= len(loads) else [[key] for key in keys]
    hands: list[list[SampleKey]] = [[] for _ in loads]
    load = list(loads)
    for group in groups:
        least = min(range(len(load)), key=lambda index: (load[index], index))
        hands[least].extend(group)
        load[least] += len(group)
    return hands

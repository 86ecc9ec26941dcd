"""Plans by expected lengths: who gets which prompts, and how many instances.

The rules of RLHFless: prompts of like length together and equal work for each instance (section
4.3), and the number of instances by a weighted score of time and cost (4.4).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

SPEED: Final = 0.7
"""What time counts for against cost (alpha)."""

StepTime = Callable[[int, float], float]
"""Time of a decoding step of so many samples with so many tokens of context, all together."""


MOST_CANDIDATES: Final = 8
"""Numbers of instances that are compared; each asks for the time of all prompts."""


def candidates(most: int) -> list[int]:
    """Return the numbers of instances to compare, from 1 to `most`.

    >>> candidates(4), candidates(16)
    ([1, 2, 3, 4], [2, 4, 6, 8, 10, 12, 14, 16])
    """
    count = min(most, MOST_CANDIDATES)
    return [most * number // count for number in range(1, count + 1)]


def share_out(work: float, *, slowness: Sequence[int], busy: Sequence[float]) -> list[float]:
    """Return the work of each instance, so that all end together as far as they can.

    `slowness`: how many times as long as the fastest one takes; `busy`: the work that each has.

    >>> share_out(90, slowness=[1, 2], busy=[0, 0])
    [60.0, 30.0]
    >>> share_out(90, slowness=[1, 1], busy=[30, 0])
    [30.0, 60.0]
    """
    speeds = sum(1 / one for one in slowness)
    whole = work + sum(busy)
    return [max(0.0, whole / one / speeds - has) for one, has in zip(slowness, busy, strict=True)]


def rank(
    expected: Sequence[int],
    parts: int,
    *,
    work: Sequence[int] | None = None,
    shares: Sequence[float] | None = None,
) -> list[list[int]]:
    """Return the prompts of each part: the longest first, and work by `shares`, or equal.

    `expected` are lengths by prompt, and its work if no other is given. Parts may be empty where
    prompts are few. `O(n log n)`.

    >>> rank([10, 90, 20, 60], 2)
    [[1], [3, 2, 0]]
    >>> rank([10, 90, 20, 60], 2, shares=[3, 1])
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(expected)), key=lambda prompt: (-expected[prompt], prompt))
    work = work or expected
    total, done = sum(work), 0.0
    edges = list(accumulate(shares if shares and any(shares) else [1.0] * parts))
    found: list[list[int]] = [[] for _ in range(parts)]
    for prompt in order:
        middle = done + work[prompt] / 2
        part = bisect(edges, middle * edges[-1] / total) if total else 0
        found[min(part, parts - 1)].append(prompt)
        done += work[prompt]
    return found


def time_of(lengths: Sequence[int], *, context: int, step: StepTime) -> float:
    """Return how long an instance takes for samples of these lengths, without their prefill.

    `context` is the length of their prompts. The batch shrinks as samples end.

    >>> time_of([2, 5], context=10, step=lambda batch, context: 10.0 * batch)
    70.0
    """
    took, made, left = 0.0, 0, sorted(lengths)
    for number, length in enumerate(left):
        batch = len(left) - number
        steps = length - made
        if not steps:  # of one prompt's samples the first counts for all
            continue
        took += steps * step(batch, batch * (context + made + steps / 2))
        made = length
    return took


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPlan:
    """How many instances, and which prompts each gets."""

    parts: list[list[int]]
    time: float
    cost: float
    """Time of all instances together, each until its last sample ends."""


def choose_plan(
    expected: Sequence[int],
    *,
    samples: int,
    context: int,
    step: StepTime,
    counts: Sequence[int],
    start: float = 0.0,
    speed: float = SPEED,
) -> LengthPlan:
    """Return the plan with the lowest score among so many instances each.

    Time and cost are scaled to 0..1 over `counts`, then weighted by `speed` and the rest. `start`
    is what each instance takes besides.
    """
    plans: dict[int, LengthPlan] = {}
    for count in counts:
        parts = rank(expected, count)
        times = [
            start + time_of([expected[p] for p in part] * samples, context=context, step=step)
            for part in parts
        ]
        plans[count] = LengthPlan(parts=parts, time=max(times), cost=sum(times))
    times_ = _scaled({count: plan.time for count, plan in plans.items()})
    costs = _scaled({count: plan.cost for count, plan in plans.items()})
    best = min(plans, key=lambda one: (speed * times_[one] + (1 - speed) * costs[one], one))
    return plans[best]


def _scaled(values: Mapping[int, float]) -> dict[int, float]:
    low, high = min(values.values()), max(values.values())
    return {key: (value - low) / (high - low or 1.0) for key, value in values.items()}

"""Plans by expected lengths: who gets which prompts, and how many instances.

The rules of RLHFless: prompts of like length together (section 4.3), and the number of instances
by a weighted score of time and cost (4.4). Instances get what lets them end together by the time of
their steps, not equal work as in the paper.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

SPEED: Final = 0.7
"""What time counts for against cost (alpha)."""

StepTime = Callable[[int, float], float]
"""Time of a decoding step of so many samples with so many tokens of context, all together."""

LONGEST: Final = 0.25
"""What the steps of a part's longest answer count for, where parts are to end together.

Single answers differ from what is expected by more than prompts do: with all of it, as is right for
known lengths, parts of short answers get so many that they end last (`benchmarks-rollout.md`).
"""

HALVINGS: Final = 50
"""Of the time in which the earliest end is sought."""


MOST_CANDIDATES: Final = 8
"""Numbers of instances that are compared; each asks for the time of all prompts."""


def candidates(most: int) -> list[int]:
    """Return the numbers of instances to compare, from 1 to `most`.

    >>> candidates(4), candidates(16)
    ([1, 2, 3, 4], [2, 4, 6, 8, 10, 12, 14, 16])
    """
    count = min(most, MOST_CANDIDATES)
    return [most * number // count for number in range(1, count + 1)]


def rank(
    expected: Sequence[int],
    parts: int,
    *,
    samples: Sequence[int] | None = None,
    context: int = 0,
    step: StepTime | None = None,
    slowness: Sequence[int] | None = None,
    busy: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return the prompts of each part, the longest first, so that the last to end does so soonest.

    `expected` are lengths by prompt, each of one sample or of `samples`; `context` is the length of
    prompts. A part takes as long as its samples add to steps, and `LONGEST` of what the steps of
    its longest take without them; while `step` is not known, as all its tokens. It takes `slowness`
    times as long where that is given, and has `busy` samples of mean length already. Parts may be
    empty where prompts are few. `step` is linear. `O(n log n)`.

    >>> rank([10, 90, 20, 60], 2)
    [[1], [3, 2, 0]]
    >>> rank([10, 90, 20, 60], 2, slowness=[1, 3])
    [[1, 3], [2, 0]]
    >>> rank([80, 30, 30, 30], 2, step=lambda batch, context: 8.0 + batch)
    [[0], [1, 2, 3]]
    """
    fixed = 0.0 if step is None else step(0, 0.0)
    times = [
        length * (1.0 if step is None else step(1, context + length / 2) - fixed)
        for length in expected
    ]
    times = [time * count for time, count in zip(times, samples or [1] * len(times), strict=True)]
    order = sorted(range(len(expected)), key=lambda prompt: (-expected[prompt], prompt))
    done = list(accumulate((times[prompt] for prompt in order), initial=0.0))
    mean = done[-1] / max(1, sum(samples or [1] * len(times)))
    slow, has = slowness or [1] * parts, [mean * count for count in busy or [0] * parts]

    def edges(end: float) -> list[int]:
        """Return where the parts begin that are over by `end`, and where the last one ends."""
        found = [0]
        for one, before in zip(slow, has, strict=True):
            first = found[-1]
            alone = fixed * LONGEST * expected[order[first]] if first < len(order) else 0.0
            last = bisect(done, done[first] + end / one - before - alone) - 1
            found.append(max(first, last))
        return found

    early, late = 0.0, max(slow) * (fixed * max(expected, default=0) + done[-1] + max(has)) + 1.0
    for _ in range(HALVINGS):
        middle = (early + late) / 2
        early, late = (early, middle) if edges(middle)[-1] == len(order) else (middle, late)
    return [order[first:last] for first, last in pairwise(edges(late))]


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
        parts = rank(expected, count, samples=[samples] * len(expected), context=context, step=step)
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

"""Balance of load between instances: which samples of which instance should move to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import OperationId
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.instances import Instance
from plexsvc.rollout.core.profile import PLATEAU

KEPT: Final = 0.2
"""Share of its highest throughput that an instance keeps when it hands samples to an idle one.

RLBoost keeps most of it. But an idle instance costs as much as a busy one, and a sample
in a smaller batch ends sooner: for that the last ones of a step are waited for.
"""

NEVER: Final = 1 << 62
"""The tick of a sample that is not taken for one that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """How many samples an instance should hand over."""

    instance_id: InstanceId
    count: int
    queued: list[tuple[OperationId, SampleKey]] = field(default_factory=list)
    """Those that wait in its engine; empty: samples that it has begun."""


def compare(instances: Iterable[Instance]) -> None:
    """Note of each instance how many times as long its steps take as the fastest's.

    A step on a larger batch takes no less, and at most in proportion. So one is slower for certain
    only by what remains when its batch was larger than the other's.
    """
    known = [one for one in instances if one.step_s]
    if not known:
        return
    fastest = min(known, key=lambda one: one.step_s)
    ablest = min(known, key=lambda one: one.step_s / one.batch)
    for one in known:
        factors = [
            one.step_s / (mark.step_s * max(1.0, one.batch / mark.batch))
            for mark in (fastest, ablest)
        ]
        one.slowness = max(1, *map(int, factors))


def choose(serving: Mapping[InstanceId, Instance], *, tick: int) -> Handover | None:
    """Return a move that lets work go on sooner, or None (Algorithm 2 of RLBoost).

    A sample that was started two ticks ago and got no token, while others of its instance did, may
    wait in the engine's queue. It may also be in a long prefill, which a move begins anew, so it is
    moved once until it has a token. While one instance has such and another has none, half of them
    move. Where no sample waits and an instance has nothing at all, the one with the longest work
    hands over half, beyond the batch that its profile says to keep; or, where it is slower, what
    the other ends sooner. Never so many that it would be done first.
    """
    if len(serving) <= 1:
        return None
    queued = {one: queued_in(instance, before=tick - 1) for one, instance in serving.items()}
    longest = max(queued, key=lambda one: len(queued[one]))
    if queued[longest]:
        if all(instance.pending for instance in serving.values()):
            return None
        count = (len(queued[longest]) + 1) // 2
        return Handover(instance_id=longest, count=count, queued=queued[longest][::-1])
    idle = [one.slowness for one in serving.values() if not one.load]
    if not idle:
        return None
    longest = max(serving, key=lambda one: serving[one].running * serving[one].slowness)
    count = _beyond(serving[longest], than=min(idle))
    return Handover(instance_id=longest, count=count) if count > 0 else None


def _beyond(instance: Instance, *, than: int) -> int:
    """Return how many samples should leave for an idle instance that is so slow."""
    running, both = instance.running, instance.slowness + than
    level = (2 * running * instance.slowness + both - 1) // (2 * both)  # halves stay
    if instance.slowness > than:
        return level
    context = instance.context_tokens / max(1, instance.load)
    share = PLATEAU if instance.turns else KEPT  # turns leave their prefix behind
    kept = instance.profile.plateau(context=context, share=share)
    return 0 if kept is None else min(running - kept, level)


def queued_in(instance: Instance, *, before: int) -> list[tuple[OperationId, SampleKey]]:
    """Return samples that were sent before a tick and may wait in the engine's queue."""
    if not instance.running:
        return []
    return [key for key, tick in instance.pending.items() if tick < before]

"""Balance of load between instances: which samples of which instance should move to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import OperationId
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.instances import Instance
from plexsvc.rollout.core.profile import Profile

NEVER: Final = 1 << 62
"""The tick of a sample that is not taken for one that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How many samples an instance should hand over."""

    instance_id: InstanceId
    count: int
    queued: list[tuple[OperationId, SampleKey]] = field(default_factory=list)
    """Those that wait in its engine; empty: samples that it has begun."""


def choose(serving: Mapping[InstanceId, Instance], profile: Profile, *, tick: int) -> Move | None:
    """Return a move that lets work go on sooner, or None (Algorithm 2 of RLBoost).

    A sample that was started two ticks ago and got no token, while others of its instance did, may
    wait in the engine's queue. It may also be in a long prefill, which a move begins anew, so it is
    moved once until it has a token. While one instance has such and another has none, half of them
    move. Where no sample waits and an
    instance has nothing at all, the fullest hands over what it has beyond the plateau of the
    profile, where fewer samples cost it no throughput; never so many that it would be emptier.
    """
    if len(serving) <= 1:
        return None
    queued = {one: _queued(instance, before=tick - 1) for one, instance in serving.items()}
    longest = max(queued, key=lambda one: len(queued[one]))
    if queued[longest]:
        if all(instance.pending for instance in serving.values()):
            return None
        count = (len(queued[longest]) + 1) // 2
        return Move(instance_id=longest, count=count, queued=queued[longest][::-1])
    if all(instance.load for instance in serving.values()):
        return None
    fullest = max(serving, key=lambda one: serving[one].running)
    running, load = serving[fullest].running, serving[fullest].load
    plateau = profile.plateau(context=serving[fullest].context_tokens / max(1, load))
    if plateau is None or running <= plateau:
        return None
    return Move(instance_id=fullest, count=min(running - plateau, running // 2))


def _queued(instance: Instance, *, before: int) -> list[tuple[OperationId, SampleKey]]:
    if not instance.running:
        return []
    return [key for key, tick in instance.pending.items() if tick < before]

"""Samples of one deployment: which instance has which, and who waits.

The least loaded instance that serves and has room gets a sample; turns prefer the one with their
session's cache. This knows nothing of why an instance serves or does not: that is the machine's.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.errors import PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import orders
from plexsvc.rollout.core.balance import NEVER
from plexsvc.rollout.core.dealing import deal, deal_turns
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.instances import Instance, Phase
from plexsvc.rollout.core.orders import Order

MAX_SESSIONS: Final = 65_536
"""Sessions whose last instance is known; the one without a turn for longest goes first."""

PORTIONS: Final = 4
"""Generates that wait share the places of an instance by such parts of them."""


@dataclass(slots=True)
class AssignedSample:
    """One sample of a generate."""

    num_tokens: int
    prompt_tokens: int = 0
    instance_id: InstanceId | None = None
    call: int = 0
    """The one that carries it; 0 while it waits, or is complete."""
    is_leaving: bool = False
    """Whether its instance was told to stop it."""
    is_moved: bool = False
    """Whether balance moved it since its last token."""
    losses: int = 0
    """Instances that it lost since its last token."""
    is_complete: bool = False


@dataclass(slots=True)
class Generate:
    """One operation that is not answered."""

    samples: dict[SampleKey, AssignedSample]
    incomplete: int
    waiting: deque[SampleKey] = field(default_factory=deque)
    """Samples that wait for an instance with room."""
    losses: int = 0
    is_turn: bool = False
    session: str = ""
    is_held: bool = False
    """Whether it is a turn that begins on the next version."""

    @property
    def under_way(self) -> int:
        """How many of its samples instances have."""
        return self.incomplete - len(self.waiting)


class Assignment:
    """Instances, unanswered generates, and which sample is where."""

    def __init__(self, *, max_pending: int, cut: float | None) -> None:
        """Assign at most `max_pending` samples without a token to an instance.

        With `cut`, instances are as full as slots were taken.
        """
        self.max_pending, self.cut = max_pending, cut
        self.portion = max(1, max_pending // PORTIONS)
        """Places that a batch gets at once: a call costs its frames, however few samples it has."""
        self.version = VersionId()
        """The wanted version."""
        self.instances: dict[InstanceId, Instance] = {}
        self.generates: dict[OperationId, Generate] = {}
        self._queues: dict[bool, dict[OperationId, Generate]] = {True: {}, False: {}}
        """Generates with samples that wait, by whether they are turns, the oldest first."""
        self.sessions: OrderedDict[str, InstanceId] = OrderedDict()
        """The instance that has the latest turn of each session."""
        self._calls = 0
        self._leaving = 0
        """Samples that were told to stop and have not."""
        self._ticks = 0
        self.spared: set[InstanceId] = set()
        """Instances that generates under way do without; turns may go there."""
        self._emptied: list[InstanceId] = []
        """Instances that lost their last sample by this event."""

    def _spread(
        self,
        operation_id: OperationId,
        keys: list[SampleKey],
        among: Iterable[InstanceId] | None = None,
    ) -> list[Order]:
        """Give samples to serving instances with room; what finds none waits."""
        generate = self.generates[operation_id]
        serving = self._serving(generate, among)
        loads = self._loads([instance for _, instance in serving])
        rooms = [self._room(instance, generate) for _, instance in serving]
        slowness = [instance.slowness for _, instance in serving]
        if generate.is_turn:
            last = self.sessions.get(generate.session)
            cached = next((i for i, (one, _) in enumerate(serving) if one == last), None)
            hands, left = deal_turns(keys, loads, rooms, slowness=slowness, cached=cached)
        else:
            hands, left = deal(keys, loads, rooms, slowness=slowness)
        self._wait(operation_id, left)
        return [
            self._start(operation_id, instance_id, hand)
            for (instance_id, _), hand in zip(serving, hands, strict=True)
            if hand
        ]

    def _wait(self, operation_id: OperationId, keys: Sequence[SampleKey]) -> None:
        """Have samples wait before others of their generate."""
        generate = self.generates[operation_id]
        generate.waiting.extendleft(reversed(keys))
        if generate.waiting:
            self._queues[generate.is_turn].setdefault(operation_id, generate)

    def _spread_waiting(self, among: Iterable[InstanceId] | None = None) -> list[Order]:
        """Give samples that wait to instances that may have got room, turns first."""
        started: list[Order] = []
        for is_turn, queue in self._queues.items():
            one = next((generate for generate in queue.values() if not generate.is_held), None)
            if one is None:
                continue
            room = sum(self._room(instance, one) for _, instance in self._serving(one, among))
            if not room:  # nor is there for others of its kind
                continue
            ready = {i: generate for i, generate in queue.items() if not generate.is_held}
            portion = 1 if is_turn else self.portion
            for operation_id, count in _shares(ready, room, portion=portion).items():
                generate = ready[operation_id]
                keys = [generate.waiting.popleft() for _ in range(count)]
                if not generate.waiting:
                    del queue[operation_id]
                started += self._spread(operation_id, keys, among)
        return started

    def _start(
        self, operation_id: OperationId, instance_id: InstanceId, keys: list[SampleKey]
    ) -> orders.StartSamples:
        generate, instance = self.generates[operation_id], self.instances[instance_id]
        self._calls += 1
        instance.load += len(keys)
        instance.turns += len(keys) * generate.is_turn
        instance.peak = max(instance.peak, instance.load)
        if generate.session:
            self.sessions[generate.session] = instance_id
            self.sessions.move_to_end(generate.session)
            if len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        for key in keys:
            sample = generate.samples[key]
            sample.instance_id, sample.call = instance_id, self._calls
            instance.context_tokens += sample.prompt_tokens + sample.num_tokens
            instance.pending[operation_id, key] = NEVER if sample.is_moved else self._ticks
        return orders.StartSamples(
            operation_id=operation_id,
            call=self._calls,
            instance_id=instance_id,
            samples=keys,
            version=self.version,
        )

    def _serving(
        self, generate: Generate, among: Iterable[InstanceId] | None = None
    ) -> list[tuple[InstanceId, Instance]]:
        """Return the instances that serve and have room for a generate, of all or of these."""
        asked = self.instances if among is None else among
        found = ((one, self.instances[one]) for one in asked if one in self.instances)
        return [
            (i, one)
            for i, one in found
            if one.is_serving
            and self._room(one, generate)
            and (generate.is_turn or i not in self.spared)
        ]

    def _room(self, instance: Instance, generate: Generate) -> int:
        """Return how many samples of a generate an instance takes."""
        if generate.is_held:
            return 0
        room = self.max_pending - len(instance.pending)
        if generate.is_turn:
            room = min(room, instance.turn_cap - instance.turns)
        return 0 if instance.rests else max(0, room)

    def _loads(self, instances: Sequence[Instance]) -> list[int]:
        """Return how full instances are: by samples, or where those are cut by slots taken."""
        if self.cut is None:
            return [instance.load for instance in instances]
        most = max((instance.peak for instance in instances), default=0)
        return [most - (instance.peak - instance.load) for instance in instances]

    def _stop(
        self, instance_id: InstanceId, keys: Iterable[tuple[OperationId, SampleKey]]
    ) -> list[Order]:
        """Have an instance stop samples; each goes elsewhere once it has."""
        stopped: dict[OperationId, list[SampleKey]] = {}
        for operation_id, key in keys:
            sample = self.generates[operation_id].samples[key]
            self._leaving += not sample.is_leaving
            sample.is_leaving = True
            stopped.setdefault(operation_id, []).append(key)
        return [
            orders.StopSamples(operation_id=one, instance_id=instance_id, samples=samples)
            for one, samples in stopped.items()
        ]

    def _samples_of(self, instance_id: InstanceId) -> list[tuple[OperationId, SampleKey]]:
        """Return the incomplete samples of an instance, the shortest first. `O(all samples)`."""
        found = [
            (sample.num_tokens, operation_id, key)
            for operation_id, generate in self.generates.items()
            for key, sample in generate.samples.items()
            if sample.instance_id == instance_id
        ]
        return [(operation_id, key) for _, operation_id, key in sorted(found)]

    def _to_leave(self) -> dict[InstanceId, list[tuple[OperationId, SampleKey]]]:
        """Return the samples that drained and spared instances still have."""
        drained = [i for i, one in self.instances.items() if one.phase is Phase.DRAINING]
        found = {one: self._samples_of(one) for one in drained}
        for one in self.spared:
            if self.instances[one].load > self.instances[one].turns:
                keys = self._samples_of(one)
                found[one] = [key for key in keys if not self.generates[key[0]].is_turn]
        return found

    def _unload(self, operation_id: OperationId, key: SampleKey, sample: AssignedSample) -> None:
        self._leaving -= sample.is_leaving
        instance_id, sample.instance_id, sample.is_leaving = sample.instance_id, None, False
        sample.call = 0
        instance = self.instances.get(instance_id) if instance_id is not None else None
        if instance is None or instance_id is None:
            return
        instance.load -= 1
        instance.turns -= self.generates[operation_id].is_turn
        instance.context_tokens -= sample.prompt_tokens + sample.num_tokens
        instance.pending.pop((operation_id, key), None)
        if not instance.load:
            instance.peak = 0
            self._emptied.append(instance_id)

    def _answer(
        self, operation_id: OperationId, error: PlexError | None = None
    ) -> orders.AnswerSamples:
        losses = self.generates[operation_id].losses
        self._forget(operation_id)
        return orders.AnswerSamples(operation_id=operation_id, losses=losses, error=error)

    def _forget(self, operation_id: OperationId) -> None:
        generate = self.generates.get(operation_id)
        if generate is None:
            return
        for key, sample in generate.samples.items():
            self._unload(operation_id, key, sample)
        self._queues[generate.is_turn].pop(operation_id, None)
        del self.generates[operation_id]


def _shares(
    generates: Mapping[OperationId, Generate], room: int, *, portion: int
) -> dict[OperationId, int]:
    """Return how many waiting samples of each generate get a place, where they are `room`.

    The next `portion` goes to the generate with the fewest samples on instances, of several to the
    oldest, once there is room for it. So a long one does not keep a short one waiting.
    `O((generates + room) log generates)`.
    """
    queue = [
        (generate.under_way, number, i) for number, (i, generate) in enumerate(generates.items())
    ]
    heapq.heapify(queue)
    shares: dict[OperationId, int] = {}
    while queue:
        under_way, number, operation_id = heapq.heappop(queue)
        given, waiting = shares.get(operation_id, 0), len(generates[operation_id].waiting)
        count = min(portion, waiting - given)
        if count > room:
            break
        room -= count
        shares[operation_id] = given + count
        if given + count < waiting:
            heapq.heappush(queue, (under_way + count, number, operation_id))
    return shares

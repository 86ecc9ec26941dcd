"""Instances of one deployment: which serves, with which version, and which is lost or let go."""

from __future__ import annotations

from typing import Final

from plexsvc.ids import VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.assignment import Assignment
from plexsvc.rollout.core.events import InstanceId
from plexsvc.rollout.core.instances import DEDICATED, KINDS, Instance, Phase, Trigger
from plexsvc.rollout.core.orders import Order

MAX_PROBES: Final = 20
"""Probes of a lost instance before it is given up."""


class Membership(Assignment):
    """Instances that come and go, and the version that they are to serve."""

    def __init__(self, *, max_pending: int, cut: float | None) -> None:
        """Begin without instances; the arguments are those of `Assignment`."""
        super().__init__(max_pending=max_pending, cut=cut)
        self._version_before = VersionId()
        self._lost_version: VersionId | None = None
        """One that no node has any more: nobody is told to load it."""
        self._holds_turns = False
        """Whether turns that come begin on the next version."""
        self._checksums: dict[VersionId, str] = {}
        """What the first instance reported of the wanted version, and of the one before."""
        self._updating: set[InstanceId] = set()
        """Instances whose answer to the latest `VersionWanted` is outstanding."""
        self._is_refused = False
        """Whether one of them refused it."""
        self.is_shared = False
        """Whether instances share their devices, and sleep where a generate does without them."""

    @property
    def is_served(self) -> bool:
        """Whether an instance serves the wanted version."""
        return any(one.is_serving for one in self.instances.values())

    @property
    def checksum(self) -> str:
        """Return the checksum of the wanted version, once an instance has reported it."""
        return self._checksums.get(self.version, "")

    @property
    def is_lost(self) -> bool:
        """Whether no instance has the wanted version, and none can get it."""
        has_it = any(one.version == self.version for one in self.instances.values())
        return self.version == self._lost_version and not has_it

    def _replace(self, event: events.InstancesReplaced) -> list[Order]:
        """Take new dedicated instances; the calls of those before end by themselves."""
        if not self.instances:  # a new manager adopts what they have
            self.version = max(joined.version for joined in event.instances)
            self._checksums.clear()
        kept = {one: has for one, has in self.instances.items() if has.kind is not DEDICATED}
        fresh = {
            joined.instance_id: Instance(joined.address, joined.version)
            for joined in event.instances
        }
        self.instances = fresh | kept
        self._updating &= set(kept)
        ordered: list[Order] = []
        for joined in event.instances:
            if joined.is_asleep:
                self._lay_down(joined.instance_id, joined.version, joined.checksum)
            elif wrong := self._serve(joined.instance_id, joined.version, joined.checksum):
                ordered += self._lose(joined.instance_id, wrong)
        return ordered + self._spread_waiting()

    def _succeed(self, event: events.SuccessorJoined) -> list[Order]:
        """Let a new process take an instance's place; the calls of that end by themselves."""
        self.instances.pop(event.of, None)
        self._updating.discard(event.of)
        return self._join(event.joined)

    def _join(self, joined: events.InstanceJoined, *, may_serve: bool = True) -> list[Order]:
        """Take one more instance, whatever else goes on; it is updated before it serves."""
        made = Instance(joined.address, joined.version, kind=KINDS[joined.kind])
        self.instances[joined.instance_id] = made
        if not may_serve:
            return []
        answered = events.InstanceAnswered(
            instance_id=joined.instance_id, version=joined.version, checksum=joined.checksum
        )
        return self._hear(answered)

    def _hear(self, event: events.InstanceAnswered | events.InstanceCallFailed) -> list[Order]:
        """Let an instance with the wanted version serve, update another, seek a lost one."""
        one = event.instance_id
        instance = self.instances.get(one)
        if instance is None:
            return []
        instance.is_sought &= not event.is_probe
        if isinstance(event, events.InstanceCallFailed):
            ordered = self._lose(one, event.because)
            return ordered if event.is_probe else ordered + self._settle(one)
        refusal = self._serve(one, event.version, event.checksum) or event.refusal
        if refusal:
            if one not in self._updating:
                if event.is_unread:  # it tries until somebody has the version, or it is lost
                    instance.probes = min(instance.probes, 1)
                return self._lose(one, refusal)
            self.instances[one].lost_because = refusal
            self._is_refused = True
            return self._settle(one)
        if instance.is_serving:
            return self._settle(one)
        is_lost = self.version == self._lost_version
        if one in self._updating or instance.phase is Phase.DRAINING or is_lost:
            return []
        return [orders.UpdateInstance(instance_id=one, version=self.version)]

    def _serve(self, instance_id: InstanceId, version: VersionId, checksum: str) -> str:
        """Note an instance's version; it serves if that is the wanted one. Return what is wrong."""
        instance = self.instances[instance_id]
        instance.version, instance.checksum = version, checksum
        if version != self.version:
            instance.enter(Trigger.OUTDATED)
            return ""
        known = self._checksums.setdefault(version, checksum)
        if checksum != known:
            return f"its {version} has checksum {checksum or 'none'}, the others' has {known}"
        instance.enter(Trigger.VERIFIED)
        instance.lost_because, instance.probes = "", 0
        return ""

    def _lay_down(self, instance_id: InstanceId, version: VersionId, checksum: str) -> None:
        """Note that an instance sleeps, and what it served."""
        instance = self.instances[instance_id]
        instance.version, instance.checksum = version, checksum
        instance.enter(Trigger.SLEPT)
        instance.lost_because, instance.probes = "", 0

    def _sleep(self, event: events.InstanceAnswered) -> list[Order]:
        """Give an instance no samples that sleeps."""
        instance = self.instances.get(event.instance_id)
        if instance is None:
            return []
        instance.is_sought &= not event.is_probe
        self._lay_down(event.instance_id, event.version, event.checksum)
        return self._settle(event.instance_id)

    def _lose(
        self, instance_id: InstanceId, because: str, *, may_return: bool = True
    ) -> list[Order]:
        """Give an instance no more samples; seek it unless that is under way or was in vain."""
        instance = self.instances[instance_id]
        instance.enter(Trigger.BROKE)
        instance.lost_because = because
        self.spared.discard(instance_id)  # once it is back it may be needed
        if instance.phase is Phase.GONE or not instance.kind.is_sought:
            del self.instances[instance_id]
            return [self._give_up(instance_id, instance)]
        if instance.is_sought:
            return []
        if instance.probes >= MAX_PROBES or not may_return:
            instance.probes = 0
            return [self._give_up(instance_id, instance)]
        instance.is_sought = True
        instance.probes += 1
        return [orders.SeekInstance(instance_id=instance_id, probe=instance.probes)]

    @staticmethod
    def _give_up(instance_id: InstanceId, instance: Instance) -> orders.GiveUpInstance:
        return orders.GiveUpInstance(
            instance_id=instance_id,
            kind=instance.kind.name,
            address=instance.address,
            because=instance.lost_because,
        )

    def _drain(self, instance_id: InstanceId) -> list[Order]:
        """Have an instance stop its samples, which go elsewhere; then it is released."""
        instance = self.instances.get(instance_id)
        if instance is None:
            return []
        instance.enter(Trigger.DRAINED)
        ordered = self._settle(instance_id)
        if not instance.load:
            return ordered + self._release(instance_id)
        return ordered + self._stop(instance_id, self._samples_of(instance_id))

    def _release(self, instance_id: InstanceId) -> list[Order]:
        """Let a drained instance go once it has no samples."""
        instance = self.instances.get(instance_id)
        if instance is None or instance.phase is not Phase.DRAINING or instance.load:
            return []
        instance.enter(Trigger.ENDED)
        del self.instances[instance_id]
        return [orders.ReleaseInstance(instance_id=instance_id, address=instance.address)]

    def _leave(self) -> list[Order]:
        """Have the spared instances that have no samples any more leave their devices to others."""
        relied_on = next(i for i, generate in self.generates.items() if not generate.is_turn)
        ordered: list[Order] = []
        for one in sorted(self.spared):
            instance = self.instances[one]
            if instance.is_serving and not instance.load and instance.kind is DEDICATED:
                instance.enter(Trigger.SLEPT)
                order = orders.LeaveDevice(
                    instance_id=one, address=instance.address, operation_id=relied_on
                )
                ordered.append(order)
        return ordered

    def _end(self, event: events.InstanceEnded) -> list[Order]:
        """Forget an instance; its calls end by themselves."""
        instance = self.instances.pop(event.instance_id, None)
        if instance is None:
            return []
        instance.enter(Trigger.ENDED)
        return self._settle(event.instance_id)

    @property
    def finishes_turns(self) -> bool:
        """Whether turns are under way that end before the next version is loaded."""
        turns = (one for one in self.generates.values() if one.is_turn)
        return self._holds_turns and not all(turn.is_held for turn in turns)

    def _hold_turns(self, *, is_over: bool) -> list[Order]:
        self._holds_turns = not is_over
        return self._free_turns() if is_over else []

    def _free_turns(self) -> list[Order]:
        self._holds_turns = False
        for generate in self.generates.values():
            generate.is_held = False
        return self._spread_waiting()

    def _want(self, event: events.VersionWanted) -> list[Order]:
        version = event.version
        # Of a manager that follows another, instances may have the model's weights alone.
        self._version_before = self.version if event.wakes else version
        self.version = version
        kept = {self._version_before, version}
        self._checksums = {known: sum_ for known, sum_ in self._checksums.items() if known in kept}
        left_alone = {Phase.DRAINING} if event.wakes else {Phase.DRAINING, Phase.ASLEEP}
        living = {i: one for i, one in self.instances.items() if one.phase not in left_alone}
        self._updating, self._is_refused = set(living), False
        for instance in living.values():
            instance.enter(Trigger.OUTDATED)
        self._free_turns()  # none starts: nobody has the version yet
        return [orders.UpdateInstance(instance_id=one, version=version) for one in living]

    def _settle(self, instance_id: InstanceId) -> list[Order]:
        """Return to the version before once every instance that answered refused the wanted one."""
        self._updating.discard(instance_id)
        if self._is_refused and not self._updating:
            self._is_refused = False
            if not any(one.version == self.version for one in self.instances.values()):
                self.version = self._version_before
                for one, instance in self.instances.items():
                    if not instance.is_sought:
                        self._serve(one, instance.version, instance.checksum)
        return self._spread_waiting()

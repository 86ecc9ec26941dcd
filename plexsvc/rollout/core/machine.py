"""The rollout core of one deployment: which instance serves and which sample goes where.

Theory of operation. An instance *serves* while it answers and has the wanted version, with the
checksum that the others report of it. A broken call makes it *lost*: it gets no samples and is
sought. When it answers, it is updated if it has another version, and serves again. After
`MAX_PROBES` probes in vain it is given up, and the scheduler starts a successor or ends the
deployment. Samples go to the least loaded serving instances, and wait while there is none. When a
call ends before its samples are complete, each of them continues elsewhere from its recorded
tokens; draws depend on the position, so it continues exactly. A sample that loses `max_losses`
instances fails its operation. Every operation is answered once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId, show
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.dealing import deal
from plexsvc.rollout.core.events import Event, InstanceId, SampleKey
from plexsvc.rollout.core.orders import Order

MAX_PROBES: Final = 20
"""Probes of a lost instance before it is given up."""

FATAL: Final = frozenset(
    {ErrorCode.BAD_REQUEST, ErrorCode.STALE_FENCE, ErrorCode.PAYLOAD_TOO_LARGE}
)
"""Refusals that another instance would repeat."""


@dataclass(slots=True)
class Instance:
    """One engine process."""

    address: str
    version: VersionId
    checksum: str = ""
    is_serving: bool = False
    is_sought: bool = False
    """Whether a probe is under way."""
    probes: int = 0
    """Probes since it was lost."""
    lost_because: str = ""
    load: int = 0
    """Incomplete samples that it has."""


@dataclass(slots=True)
class Sample:
    """One sample of a generate."""

    num_tokens: int
    instance_id: InstanceId | None = None
    losses: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class Generate:
    """One operation that is not answered."""

    samples: dict[SampleKey, Sample]
    incomplete: int
    waiting: list[SampleKey] = field(default_factory=list)
    """Samples that wait for an instance to serve."""
    losses: int = 0


class RolloutCore:
    """State of one deployment's instances and unanswered generates."""

    def __init__(self, deployment_id: str, *, max_losses: int) -> None:
        self.deployment_id, self.max_losses = deployment_id, max_losses
        self.version = VersionId()
        """The wanted version."""
        self.instances: dict[InstanceId, Instance] = {}
        self.generates: dict[OperationId, Generate] = {}
        self._version_before = VersionId()
        self._checksums: dict[VersionId, str] = {}
        """What the first instance reported of the wanted version, and of the one before."""
        self._updating: set[InstanceId] = set()
        """Instances whose answer to the latest `VersionWanted` is outstanding."""
        self._is_refused = False
        """Whether one of them refused it."""

    def handle(self, event: Event) -> list[Order]:  # noqa: PLR0911 - one case an event
        """Apply an event and return the orders that follow from it."""
        match event:
            case events.InstancesReplaced():
                return self._replace(event)
            case events.SuccessorJoined():
                return self._succeed(event)
            case events.InstanceAnswered() | events.InstanceLost():
                return self._hear(event)
            case events.VersionWanted():
                return self._want(event.version)
            case events.SamplesSubmitted():
                samples = {key: Sample(num_tokens) for key, num_tokens in event.samples.items()}
                self.generates[event.operation_id] = Generate(samples, len(samples))
                return self._spread(event.operation_id, list(samples))
            case events.TokensArrived():
                return self._record(event)
            case events.CallEnded():
                return self._end_call(event)
            case events.OperationEnded():
                self._forget(event.operation_id)
                return []
        assert_never(event)

    @property
    def is_served(self) -> bool:
        """Whether an instance serves the wanted version."""
        return any(one.is_serving for one in self.instances.values())

    @property
    def checksum(self) -> str:
        """Return the checksum of the wanted version, once an instance has reported it."""
        return self._checksums.get(self.version, "")

    def death(self, what: str) -> PlexError:
        """Return the error that says which instances are lost and why."""
        lost = [one for one in self.instances.values() if not one.is_serving]
        names = ", ".join(f"{one.address} ({one.lost_because})" for one in lost)
        return PlexError(
            ErrorCode.WORKER_DIED,
            f"{what} of {self.deployment_id}; lost: {names or 'none'}; they are started again",
            deployment_id=self.deployment_id,
            instances=", ".join(one.address for one in lost),
        )

    # ---- instances

    def _replace(self, event: events.InstancesReplaced) -> list[Order]:
        """Take new instances; the calls of those before end by themselves."""
        if not self.instances:  # a new manager adopts what they have
            self.version = max(joined.version for joined in event.instances)
            self._checksums.clear()
        self.instances = {
            joined.instance_id: Instance(joined.address, joined.version)
            for joined in event.instances
        }
        self._updating.clear()
        ordered: list[Order] = []
        for joined in event.instances:
            if wrong := self._serve(joined.instance_id, joined.version, joined.checksum):
                ordered += self._lose(joined.instance_id, wrong)
        return ordered + self._spread_waiting()

    def _succeed(self, event: events.SuccessorJoined) -> list[Order]:
        """Let a new process take an instance's place; the calls of that end by themselves."""
        self.instances.pop(event.of, None)
        self._updating.discard(event.of)
        joined = event.joined
        self.instances[joined.instance_id] = Instance(joined.address, joined.version)
        answered = events.InstanceAnswered(
            instance_id=joined.instance_id, version=joined.version, checksum=joined.checksum
        )
        return self._hear(answered)

    def _hear(self, event: events.InstanceAnswered | events.InstanceLost) -> list[Order]:
        """Let an instance with the wanted version serve, update another, seek a lost one."""
        one = event.instance_id
        instance = self.instances.get(one)
        if instance is None:
            return []
        instance.is_sought &= not event.is_probe
        if isinstance(event, events.InstanceLost):
            ordered = self._lose(one, event.because)
            return ordered if event.is_probe else ordered + self._settle(one)
        refusal = self._serve(one, event.version, event.checksum) or event.refusal
        if refusal:
            return self._refuse(one, refusal)
        if instance.is_serving:
            return self._settle(one)
        if one in self._updating:
            return []
        return [orders.UpdateInstance(instance_id=one, version=self.version)]

    def _serve(self, instance_id: InstanceId, version: VersionId, checksum: str) -> str:
        """Note an instance's version; it serves if that is the wanted one. Return what is wrong."""
        instance = self.instances[instance_id]
        instance.version, instance.checksum = version, checksum
        instance.is_serving = False
        if version != self.version:
            return ""
        known = self._checksums.setdefault(version, checksum)
        if checksum != known:
            return f"its {version} has checksum {checksum or 'none'}, the others' has {known}"
        instance.is_serving, instance.lost_because, instance.probes = True, "", 0
        return ""

    def _lose(self, instance_id: InstanceId, because: str) -> list[Order]:
        """Give an instance no more samples; seek it unless that is under way or was in vain."""
        instance = self.instances[instance_id]
        instance.is_serving, instance.lost_because = False, because
        if instance.is_sought:
            return []
        if instance.probes >= MAX_PROBES:
            instance.probes = 0
            return [orders.GiveUpInstance(instance_id=instance_id)]
        instance.is_sought = True
        instance.probes += 1
        return [orders.SeekInstance(instance_id=instance_id, probe=instance.probes)]

    # ---- versions

    def _want(self, version: VersionId) -> list[Order]:
        self._version_before, self.version = self.version, version
        kept = {self._version_before, version}
        self._checksums = {known: sum_ for known, sum_ in self._checksums.items() if known in kept}
        self._updating, self._is_refused = set(self.instances), False
        for instance in self.instances.values():
            instance.is_serving = False
        return [orders.UpdateInstance(instance_id=one, version=version) for one in self.instances]

    def _refuse(self, instance_id: InstanceId, refusal: str) -> list[Order]:
        if instance_id not in self._updating:
            return self._lose(instance_id, refusal)
        self.instances[instance_id].lost_because = refusal
        self._is_refused = True
        return self._settle(instance_id)

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

    # ---- samples

    def _spread(self, operation_id: OperationId, keys: list[SampleKey]) -> list[Order]:
        """Give samples to serving instances; without one they wait."""
        generate = self.generates[operation_id]
        serving = [(one, i) for one, i in self.instances.items() if i.is_serving]
        if not serving:
            generate.waiting += keys
            return []
        started: list[Order] = []
        hands = deal(keys, [instance.load for _, instance in serving])
        for (instance_id, instance), hand in zip(serving, hands, strict=True):
            if not hand:
                continue
            instance.load += len(hand)
            for key in hand:
                generate.samples[key].instance_id = instance_id
            started.append(
                orders.StartSamples(
                    operation_id=operation_id,
                    instance_id=instance_id,
                    samples=hand,
                    version=self.version,
                )
            )
        return started

    def _spread_waiting(self) -> list[Order]:
        if not self.is_served:
            return []
        started: list[Order] = []
        for operation_id, generate in self.generates.items():
            if generate.waiting:
                keys, generate.waiting = generate.waiting, []
                started += self._spread(operation_id, keys)
        return started

    def _record(self, event: events.TokensArrived) -> list[Order]:
        """Take each position of each sample once; a gap fails the operation."""
        generate = self.generates.get(event.operation_id)
        if generate is None:
            return []
        known: list[int | None] = []
        for arrival in event.arrivals:
            sample = generate.samples.get(arrival.key)
            if sample is None or arrival.position > sample.num_tokens:
                has = "not been asked for" if sample is None else sample.num_tokens
                error = PlexError(
                    ErrorCode.INTERNAL,
                    f"{show(event.operation_id)}: an instance sent position {arrival.position} "
                    f"of sample {arrival.key}, which has {has} tokens",
                )
                return [self._answer(event.operation_id, error)]
            if sample.is_complete:
                known.append(None)
                continue
            known.append(sample.num_tokens - arrival.position)
            sample.num_tokens = max(sample.num_tokens, arrival.position + arrival.count)
            if arrival.is_last:
                sample.is_complete = True
                generate.incomplete -= 1
                self._unload(sample)
        recorded = orders.RecordTokens(operation_id=event.operation_id, known=known)
        if generate.incomplete:
            return [recorded]
        return [recorded, self._answer(event.operation_id)]

    def _end_call(self, event: events.CallEnded) -> list[Order]:
        """Continue elsewhere what a call left incomplete."""
        generate = self.generates.get(event.operation_id)
        if generate is None:
            return []
        left = [key for key in event.samples if not generate.samples[key].is_complete]
        if not left:
            return []
        if event.error.code in FATAL:
            return [self._answer(event.operation_id, event.error)]
        instance, because = self.instances.get(event.instance_id), event.error.message
        sought: list[Order] = []
        if instance is not None and instance.is_serving:
            sought = self._lose(event.instance_id, because)
        generate.losses += 1
        for key in left:
            sample = generate.samples[key]
            self._unload(sample)
            sample.losses += 1
            if sample.losses >= self.max_losses:
                error = self.death(
                    f"sample {key} of {show(event.operation_id)} lost {sample.losses} instances "
                    f"(rollout.max_tries_per_sample), the last at {event.address}: {because}; "
                    "instances"
                )
                return [*sought, self._answer(event.operation_id, error)]
        return sought + self._spread(event.operation_id, left)

    def _unload(self, sample: Sample) -> None:
        if sample.instance_id in self.instances:
            self.instances[sample.instance_id].load -= 1
        sample.instance_id = None

    def _answer(
        self, operation_id: OperationId, error: PlexError | None = None
    ) -> orders.AnswerSamples:
        losses = self.generates[operation_id].losses
        self._forget(operation_id)
        return orders.AnswerSamples(operation_id=operation_id, losses=losses, error=error)

    def _forget(self, operation_id: OperationId) -> None:
        generate = self.generates.pop(operation_id, None)
        for sample in generate.samples.values() if generate else ():
            self._unload(sample)

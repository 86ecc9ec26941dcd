"""The rollout core of one deployment: which instance serves and which sample goes where.

Theory of operation. The life of an instance is the table of `instances`. It *serves* while it
answers and has the wanted version, with the checksum that the others report of it. A broken call
makes a dedicated one *lost*: it gets no samples and is sought. When it answers, it is updated if it
has another version, and serves again. After `MAX_PROBES` probes in vain, or garbage, it is given
up, and the scheduler starts a successor or ends the deployment. A spot one that is lost is gone.

Samples go to the least loaded serving instance with fewer than `max_pending` samples that it has
sent no token of, and wait while there is none (join the shortest queue, with delayed dispatch).
Turns of trajectories, which go beside the order of operations, are dealt turn by turn: to the
instance that had the session's last turn, whose cache has the prefix, or to the least loaded, of
those with fewer turns than their `turn_cap`; what waits of them goes before other samples (ROSE). A
sample leaves an instance when its call ends, or when it is *stopped* there, because the instance is
drained or `balance` gives it to another. It goes on elsewhere from its recorded tokens; draws
depend on the position, so it continues exactly. A sample that loses `max_losses` instances in a row
without a token fails its operation. Every operation is answered once.

Engines on training devices join for a seeding window (`window`), and are drained when it closes.
"""

from __future__ import annotations

from typing import Final, assert_never

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId, show
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.assignment import Assignment, Generate, Sample
from plexsvc.rollout.core.balance import choose, compare
from plexsvc.rollout.core.events import Event, InstanceId, SampleKey
from plexsvc.rollout.core.instances import DEDICATED, KINDS, RESERVED, Instance, Phase, Trigger
from plexsvc.rollout.core.orders import Order
from plexsvc.rollout.core.window import SeedingWindow

REST_TICKS: Final = 4
"""An instance that handed samples back gets none for so long."""

MAX_PROBES: Final = 20
"""Probes of a lost instance before it is given up."""

FATAL: Final = frozenset(
    {ErrorCode.BAD_REQUEST, ErrorCode.STALE_FENCE, ErrorCode.PAYLOAD_TOO_LARGE}
)
"""Refusals that another instance would repeat."""


class RolloutCore(Assignment):
    """State of one deployment's instances and unanswered generates."""

    def __init__(
        self,
        deployment_id: str,
        *,
        max_losses: int,
        max_pending: int,
        cut: float | None = None,
        spares: bool = False,
        counts: bool = False,
    ) -> None:
        """Let an instance go when this share of its samples has ended (`cut`), None: never.

        It is drained then or, with `spares`, kept for later generates. `counts`: instances that a
        generate of expected lengths can do without are spared from its beginning.
        """
        super().__init__(max_pending=max_pending, cut=cut, counts=counts)
        self.deployment_id, self.max_losses, self.spares = deployment_id, max_losses, spares
        self._version_before = VersionId()
        self._holds_turns = False
        """Whether turns that come begin on the next version."""
        self._checksums: dict[VersionId, str] = {}
        """What the first instance reported of the wanted version, and of the one before."""
        self._updating: set[InstanceId] = set()
        """Instances whose answer to the latest `VersionWanted` is outstanding."""
        self._is_refused = False
        """Whether one of them refused it."""
        self._ticked_us = 0
        self.is_shared = False
        """Whether instances share their devices, and sleep where a generate does without them."""
        self.window = SeedingWindow()

    def handle(self, event: Event) -> list[Order]:
        """Apply an event and return the orders that follow from it."""
        ordered = self._apply(event)
        if self.spared:
            self.spared &= self.instances.keys()
            if self._needs_all():
                self.spared.clear()
                ordered += self._spread_waiting()
        if self.window.operation_id is not None:
            ordered += self._watch_window(event)
        emptied, self._emptied = self._emptied, []
        for one in emptied:
            ordered += self._release(one)
        if self.window.is_closing and not self._reserved():
            ordered.append(self.window.end())
        if self.spared and self.is_shared:
            ordered += self._leave()
        return ordered

    def _apply(self, event: Event) -> list[Order]:  # noqa: C901, PLR0911, PLR0912 - by event
        match event:
            case events.InstancesReplaced():
                return self._replace(event)
            case events.SuccessorJoined():
                return self._succeed(event)
            case events.InstanceJoined():
                return self._join(event)
            case events.InstanceDrained():
                return self._drain(event.instance_id)
            case events.InstanceEnded():
                return self._end(event)
            case events.InstanceAnswered(is_asleep=True):
                return self._sleep(event)
            case events.InstanceAnswered() | events.InstanceLost():
                return self._hear(event)
            case events.VersionWanted():
                return self._want(event)
            case events.TurnsHeld():
                return self._hold_turns(is_over=event.is_over)
            case events.SamplesSubmitted():
                started = self._submit(event)
                self._look(event.at_us)
                return started
            case events.TokensArrived():
                return self._record(event)
            case events.CallEnded():
                return self._end_call(event)
            case events.OperationEnded():
                self._forget(event.operation_id)
                self._look(event.at_us)
                return self._spread_waiting()
            case events.WindowOpened():
                self._look(event.at_us)
                self.window.open(event)
                return []
            case events.WindowLeft():
                self._look(event.at_us)
                self.window.close()
                return []
            case events.Ticked():
                self._look(event.at_us)
                return self._tick(event.at_us)
        assert_never(event)

    def _needs_all(self) -> bool:
        """Whether no generate spares instances any more, or one waits for those it relied on."""
        batches = [generate for generate in self.generates.values() if not generate.is_turn]
        if not any(generate.waiting for generate in batches):
            return not batches
        return not any(one.is_serving for i, one in self.instances.items() if i not in self.spared)

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

    def _join(self, joined: events.InstanceJoined) -> list[Order]:
        """Take one more instance, whatever else goes on; it is updated before it serves."""
        made = Instance(joined.address, joined.version, kind=KINDS[joined.kind])
        self.instances[joined.instance_id] = made
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
        if one in self._updating or instance.phase is Phase.DRAINING:
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

    # ---- versions

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
        self._version_before, self.version = self.version, version
        kept = {self._version_before, version}
        self._checksums = {known: sum_ for known, sum_ in self._checksums.items() if known in kept}
        left_alone = {Phase.DRAINING} if event.wakes else {Phase.DRAINING, Phase.ASLEEP}
        living = {i: one for i, one in self.instances.items() if one.phase not in left_alone}
        self._updating, self._is_refused = set(living), False
        for instance in living.values():
            instance.enter(Trigger.OUTDATED)
        self._free_turns()  # none starts: nobody has the version yet
        return [orders.UpdateInstance(instance_id=one, version=version) for one in living]

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

    def _submit(self, event: events.SamplesSubmitted) -> list[Order]:
        lengths = event.prompt_tokens
        samples = {
            key: Sample(num_tokens, prompt_tokens=lengths[key[0]] if lengths else 0)
            for key, num_tokens in event.samples.items()
        }
        self.generates[event.operation_id] = Generate(
            samples,
            len(samples),
            is_turn=event.is_turn,
            session=event.session,
            is_held=event.is_turn and self._holds_turns,
        )
        if not event.is_turn:
            self.spared.clear()
        if event.expected and not event.is_turn:
            return self._rank(event.operation_id, list(samples), event.expected)
        return self._spread(event.operation_id, list(samples))

    def _record(self, event: events.TokensArrived) -> list[Order]:
        """Take each position of each sample once; a gap fails the operation."""
        operation_id = event.operation_id
        generate = self.generates.get(operation_id)
        if generate is None:
            return []
        known: list[int | None] = []
        moved: list[SampleKey] = []
        for arrival in event.arrivals:
            sample = generate.samples.get(arrival.key)
            if sample is None or arrival.position > sample.num_tokens:
                return [self._answer(operation_id, _gap(operation_id, arrival, sample))]
            if sample.is_complete:
                known.append(None)
                continue
            known.append(sample.num_tokens - arrival.position)
            self._grow(event, arrival, sample)
            if arrival.is_last:
                sample.is_complete = True
                generate.incomplete -= 1
                self._unload(operation_id, arrival.key, sample)
            elif arrival.is_aborted and self._may_leave(sample, event.instance_id):
                self._unload(operation_id, arrival.key, sample)
                moved.append(arrival.key)
        ordered: list[Order] = [orders.RecordTokens(operation_id=operation_id, known=known)]
        if not generate.incomplete:
            ordered.append(self._answer(operation_id))
        if moved:
            ordered += self._spread(operation_id, moved)
        ordered += self._spread_waiting((event.instance_id,))
        return ordered + self._cut(event.instance_id)

    def _cut(self, instance_id: InstanceId) -> list[Order]:
        """Let an instance go whose samples have ended but for few, if others have slots for those.

        A slot is free where a sample of the others has ended.
        """
        instance = self.instances.get(instance_id)
        if self.cut is None or instance is None or not instance.is_serving:
            return []
        if self.spares and (instance.turns or instance_id in self.spared):
            return []
        others = [
            one
            for i, one in self.instances.items()
            if i != instance_id and i not in self.spared and one.is_serving and one.load
        ]
        has_ended = instance.peak - instance.load >= self.cut * instance.peak
        slots = sum(one.peak - one.load for one in others)
        if not others or not has_ended or slots < instance.load:
            return []
        if not self.spares:
            return self._drain(instance_id)
        self.spared.add(instance_id)
        return self._stop(instance_id, self._samples_of(instance_id))

    def _may_leave(self, sample: Sample, instance_id: InstanceId) -> bool:
        """Whether a sample goes elsewhere: it was told to, or its instance handed it back."""
        if sample.is_leaving or sample.instance_id != instance_id:
            return sample.is_leaving
        sender = self.instances.get(instance_id)
        if sender is None:  # it has left meanwhile, and its call goes on without the sample
            return True
        if sender.kind.hands_back:
            sender.rests = REST_TICKS
        return sender.kind.hands_back

    def _grow(self, event: events.TokensArrived, arrival: events.Arrival, sample: Sample) -> None:
        """Count the new tokens of a sample, and for the instance that sent them."""
        grown = arrival.position + arrival.count - sample.num_tokens
        if grown <= 0:
            return
        sample.num_tokens += grown
        sample.losses, sample.is_moved = 0, False
        sender = self.instances.get(event.instance_id)
        if sender is not None and sample.instance_id == event.instance_id:
            sender.tokens += grown
            sender.context_tokens += grown
            sender.pending.pop((event.operation_id, arrival.key), None)

    def _end_call(self, event: events.CallEnded) -> list[Order]:
        """Continue elsewhere what a call left incomplete."""
        generate = self.generates.get(event.operation_id)
        if generate is None:
            return []
        carried = ((key, generate.samples[key]) for key in event.samples)
        left = [key for key, has in carried if has.call == event.call and not has.is_complete]
        if not left:
            return []
        if event.error.code in FATAL:
            return [self._answer(event.operation_id, event.error), *self._spread_waiting()]
        instance, because = self.instances.get(event.instance_id), event.error.message
        sought: list[Order] = []
        if instance is not None and instance.is_serving:
            sought = self._lose(event.instance_id, because, may_return=not event.is_garbage)
        generate.losses += 1
        self.spared.clear()
        for key in left:
            sample = generate.samples[key]
            sample.losses += not sample.is_leaving
            self._unload(event.operation_id, key, sample)
            if sample.losses >= self.max_losses:
                error = self.death(
                    f"sample {key} of {show(event.operation_id)} lost {sample.losses} instances "
                    f"(rollout.max_tries_per_sample), the last at {event.address}: {because}; "
                    "instances"
                )
                return [*sought, self._answer(event.operation_id, error), *self._spread_waiting()]
        return [*sought, *self._spread(event.operation_id, left), *self._spread_waiting()]

    # ---- seeding window

    def _look(self, at_us: int) -> None:
        """Tell the window what instances elsewhere do, and whether a batch is generated."""
        others = [one for one in self.instances.values() if one.kind is not RESERVED]
        self.window.look(
            at_us,
            is_generating=any(not generate.is_turn for generate in self.generates.values()),
            others=sum(one.is_serving for one in others),
            working=sum(one.is_serving and one.load > 0 for one in others),
        )

    def _watch_window(self, event: Event) -> list[Order]:
        """Drain the engines on training devices once their window is over.

        Tokens carry no time: the end of a generate that they complete is told next.
        """
        has_time = not isinstance(event, events.TokensArrived)
        if has_time and self.window.is_over(
            is_complete=self.window.operation_id not in self.generates
        ):
            self.window.close()
        if not self.window.is_closing:
            return []
        return [order for one in self.staying() for order in self._drain(one)]

    def staying(self) -> list[InstanceId]:
        """Return the engines on training devices that are not told to leave."""
        phases = {one: self.instances[one].phase for one in self._reserved()}
        return [one for one, phase in phases.items() if phase is not Phase.DRAINING]

    def _reserved(self) -> list[InstanceId]:
        return [i for i, one in self.instances.items() if one.kind is RESERVED]

    # ---- balance

    def _tick(self, at_us: int) -> list[Order]:
        """Measure what instances do, and move samples from where they wait to where they do not."""
        elapsed_us, self._ticked_us = at_us - self._ticked_us, at_us
        self._ticks += 1
        for instance in self.instances.values():
            instance.measure(elapsed_us=elapsed_us)
            instance.rests = max(0, instance.rests - 1)
        compare(self.instances.values())
        started = self._spread_waiting()
        leaving = self._to_leave()
        if leaving:  # what was stopped before it had begun there is told again
            return started + [o for one, keys in leaving.items() for o in self._stop(one, keys)]
        if self._leaving or any(generate.waiting for generate in self.generates.values()):
            return started
        serving = {
            i: one for i, one in self.instances.items() if one.is_serving and i not in self.spared
        }
        move = choose(serving, tick=self._ticks)
        if move is None:
            return started
        one = serving[move.instance_id]
        keys = move.queued or [
            k for k in self._samples_of(move.instance_id) if k not in one.pending
        ]
        for operation_id, key in keys[: move.count]:
            self.generates[operation_id].samples[key].is_moved = True
        return started + self._stop(move.instance_id, keys[: move.count])


def _gap(operation_id: OperationId, arrival: events.Arrival, sample: Sample | None) -> PlexError:
    has = "not been asked for" if sample is None else sample.num_tokens
    return PlexError(
        ErrorCode.INTERNAL,
        f"{show(operation_id)}: an instance sent position {arrival.position} "
        f"of sample {arrival.key}, which has {has} tokens",
    )

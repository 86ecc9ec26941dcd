"""The rollout core of one deployment: which instance serves and which sample goes where.

Theory of operation. The life of an instance is the table of `instances`. It *serves* while it
answers and has the wanted version, with the checksum that the others report of it. A broken call
makes a dedicated one *lost*: it gets no samples and is sought. When it answers, it is updated if it
has another version, and serves again. After `MAX_PROBES` probes in vain, or garbage, it is given
up, and the scheduler starts a successor or ends the deployment. A spot one that is lost is gone.
One that cannot read the version, whose node may be lost, tries on. When no node has it any more
(`VersionLost`), nor an instance, generates end until another is wanted.

Samples go to the least loaded serving instance with fewer than `max_pending` samples that it has
sent no token of, and wait while there is none (join the shortest queue, with delayed dispatch).
Of several generates that wait, the one with the fewest samples on instances gets the next places,
and samples of others with more than twice as many that only wait in an engine's queue make room for
it at the next tick.
Turns of trajectories, which go beside the order of operations, are dealt turn by turn: to the
instance that had the session's last turn, whose cache has the prefix, or to the least loaded where
that is faster or the other is full, of those with fewer turns than their `turn_cap`; what waits of
them goes before other samples (ROSE). A sample leaves an instance when its call ends, or when it is
*stopped* there, because the instance is drained or `balance` gives it to another. It goes on
elsewhere from its recorded tokens; draws depend on the position, so it continues exactly. A sample
that loses `max_losses` instances in a row without a token fails its operation. Every operation is
answered once.

Engines on training devices join for a seeding window (`window`), and are drained when it closes.
"""

from __future__ import annotations

from typing import Final, assert_never

from plexsvc.errors import ErrorCode, PlexError, internal, not_found
from plexsvc.ids import OperationId, show
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.assignment import AssignedSample, Generate
from plexsvc.rollout.core.balance import NEVER, choose, compare, queued_in
from plexsvc.rollout.core.events import Event, InstanceId, SampleKey
from plexsvc.rollout.core.instances import RESERVED, Phase
from plexsvc.rollout.core.membership import Membership
from plexsvc.rollout.core.orders import Order
from plexsvc.rollout.core.window import SeedingWindow

REST_TICKS: Final = 4
"""An instance that handed samples back gets none for so long."""

FATAL: Final = frozenset(
    {ErrorCode.BAD_REQUEST, ErrorCode.STALE_FENCE, ErrorCode.PAYLOAD_TOO_LARGE}
)
"""Refusals that another instance would repeat."""


class RolloutCore(Membership):
    """State of one deployment's instances and unanswered generates."""

    def __init__(
        self,
        deployment_id: str,
        *,
        max_losses: int,
        max_pending: int,
        cut: float | None = None,
    ) -> None:
        """Spare an instance when this share of its samples has ended (`cut`), None: never.

        It is kept for later generates.
        """
        super().__init__(max_pending=max_pending, cut=cut)
        self.deployment_id, self.max_losses = deployment_id, max_losses
        self._ticked_us = 0
        self.window = SeedingWindow()

    def handle(self, event: Event) -> list[Order]:
        """Apply an event and return the orders that follow from it."""
        ordered = self._apply(event)
        if self.generates and self.is_lost:
            ordered += [self._answer(one, self._lost_weights()) for one in list(self.generates)]
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
                is_late = event.kind == RESERVED.name and self.window.is_closing
                joined = self._join(event, may_serve=not is_late)
                return [*joined, *self._drain(event.instance_id)] if is_late else joined
            case events.InstanceDrained():
                return self._drain(event.instance_id)
            case events.InstanceEnded():
                return self._end(event)
            case events.InstanceAnswered(is_asleep=True):
                return self._sleep(event)
            case events.InstanceAnswered() | events.InstanceCallFailed():
                return self._hear(event)
            case events.VersionWanted():
                return self._want(event)
            case events.VersionLost():
                self._lost_version = event.version
                return []
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

    def _lost_weights(self) -> PlexError:
        return not_found(
            f"{self.version} is lost with its node, and no instance of {self.deployment_id} has "
            "it; `sync` it and sample again"
        )

    # ---- samples

    def _submit(self, event: events.SamplesSubmitted) -> list[Order]:
        lengths = event.prompt_tokens
        samples = {
            key: AssignedSample(num_tokens, prompt_tokens=lengths[key[0]] if lengths else 0)
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
        self._wait(event.operation_id, list(samples))
        return self._spread_waiting()

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
            # Two calls may send the same positions: the one that a sample left, and the next.
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
            self._wait(operation_id, moved)
        ordered += self._spread_waiting(None if moved else (event.instance_id,))
        return ordered + self._cut(event.instance_id)

    def _cut(self, instance_id: InstanceId) -> list[Order]:
        """Spare an instance whose samples have ended but for few, if others have slots for those.

        A slot is free where a sample of the others has ended.
        """
        instance = self.instances.get(instance_id)
        if self.cut is None or instance is None or not instance.is_serving:
            return []
        if instance.turns or instance_id in self.spared:
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
        self.spared.add(instance_id)
        return self._stop(instance_id, self._samples_of(instance_id))

    def _may_leave(self, sample: AssignedSample, instance_id: InstanceId) -> bool:
        """Whether a sample goes elsewhere: it was told to, or its instance handed it back."""
        if sample.is_leaving or sample.instance_id != instance_id:
            return sample.is_leaving
        sender = self.instances.get(instance_id)
        if sender is None:  # it has left meanwhile, and its call goes on without the sample
            return True
        if sender.kind.hands_back:
            sender.rests = REST_TICKS
        return sender.kind.hands_back

    def _grow(
        self, event: events.TokensArrived, arrival: events.SampleTokens, sample: AssignedSample
    ) -> None:
        """Count the new tokens of a sample, and for the instance that sent them."""
        grown = arrival.position + arrival.count - sample.num_tokens
        if grown <= 0:
            return
        sample.num_tokens += grown
        # Only losses in a row count, and a token shows that it waits in no queue.
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
        left = [key for key, has in carried if has.call == event.call]
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
                    f"sample {key} of {show(event.operation_id)} lost {sample.losses} instances, "
                    f"the last at {event.address}: {because}; "
                    "instances"
                )
                return [*sought, self._answer(event.operation_id, error), *self._spread_waiting()]
        self._wait(event.operation_id, left)
        return [*sought, *self._spread_waiting()]

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

        Most events carry no time. The end of a generate that tokens complete is told next, with it.
        """
        has_time = isinstance(
            event,
            events.SamplesSubmitted
            | events.OperationEnded
            | events.WindowOpened
            | events.WindowLeft
            | events.Ticked,
        )
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
        if self._leaving:
            return started
        if self._queues[False] or self._queues[True]:
            return started + self._give_way()
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

    def _give_way(self) -> list[Order]:
        """Take samples back that wait in engines before a generate with less than half as many.

        The places that become free go to the generate with the fewest, then to these again. Were
        less enough, generates that are alike would take each other's places at every tick.
        """
        waiting = self._queues[False].values()
        fewest = min((generate.under_way for generate in waiting), default=NEVER)
        rich = {
            i
            for i, generate in self.generates.items()
            if generate.under_way > 2 * fewest + 1 and not generate.is_turn
        }
        ordered: list[Order] = []
        for i, instance in self.instances.items():
            if instance.is_serving and rich:
                keys = queued_in(instance, before=self._ticks - 1)
                ordered += self._stop(i, [key for key in keys if key[0] in rich])
        return ordered


def _gap(
    operation_id: OperationId, arrival: events.SampleTokens, sample: AssignedSample | None
) -> PlexError:
    has = "not been asked for" if sample is None else sample.num_tokens
    return internal(
        f"{show(operation_id)}: an instance sent position {arrival.position} "
        f"of sample {arrival.key}, which has {has} tokens"
    )

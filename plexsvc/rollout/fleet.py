"""The driver of the rollout core: calls to one deployment's instances.

`post` gives the core an event and performs the orders that follow. What a generate is ordered goes
to its `Generation`; what concerns instances is done here, in tasks of the manager's group.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import grpc.aio

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    service_pb2,
    statemanager_pb2,
    worker_pb2,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId
from plexsvc.rollout.core.instances import DEDICATED, RESERVED, Instance
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.lines import Line, Served, close_lines, open_line
from plexsvc.rollout.loads import Loads
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

SLEEP_CALL_S: Final = 30.0
"""How long an instance may take to end its step and go to sleep."""

ENCODE_CALL_S: Final = 10.0
"""How long an instance may take to encode texts: a chat template is a program of its tenant's."""

Gone: TypeAlias = orders.GiveUpInstance | orders.ReleaseInstance


class Fleet:
    """All instances of a deployment. Owned by the event loop; its tasks live in `group`."""

    def __init__(
        self,
        deployment_id: str,
        *,
        config: RolloutConfig,
        clock: Clock,
        group: asyncio.TaskGroup,
        keys: ClusterKeys,
        gone: Callable[[Gone | orders.LeaveDevice], None],
    ) -> None:
        """Tell `gone` of each instance that does not come back or was drained.

        `gone` also hears of each instance that sleeps because a generate no longer uses it.
        """
        self.core = RolloutCore(
            deployment_id,
            max_losses=config.max_tries_per_sample,
            max_pending=config.max_pending,
            cut=config.cuts_at or None,
        )
        self.fence = common_pb2.Fence()
        self.generates: dict[OperationId, Callable[[orders.SampleOrder], None]] = {}
        """Who performs the orders of each generate."""
        self.lines: dict[InstanceId, Line] = {}
        self._ids = itertools.count(1)
        self._config, self._clock, self._group, self._keys = config, clock, group, keys
        self._gone = gone
        self._ticking: asyncio.Task[None] | None = None
        self._asleep: set[InstanceId] = set()
        """Those that are to sleep, so that others have their devices."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._held_us, self._turned_us, self._held_at_us = 0, 0, clock.monotonic_us()
        self.progress = 0
        """Grows while instances load or send tokens, and turns run that a version waits for."""
        self._is_served, self._has_no_turns = asyncio.Event(), asyncio.Event()
        self._loads = Loads(config, clock=clock, group=group, read=self._get_on)
        self._is_closed = False
        self._window: asyncio.Future[orders.EndWindow] | None = None
        """Whoever had the seeding window opened waits for its end."""

    # ---- events in, orders out

    def post(self, event: events.Event) -> None:
        """Give the core an event and perform the orders that follow."""
        for order in self._decide(event):
            if not self._is_closed:
                self._perform(order)

    def held_us(self) -> int:
        """Return the time of all instances together, but where generates did without them."""
        now_us = self._clock.monotonic_us()
        elapsed_us, self._held_at_us = now_us - self._held_at_us, now_us
        instances, spared = self.core.instances, self.core.spared | self._asleep
        self._held_us += elapsed_us * sum(one not in spared for one in instances)
        turning = [one for one in instances.values() if one.turns and one.kind is DEDICATED]
        if turning and not any(one.load > one.turns for one in instances.values()):
            self._turned_us += elapsed_us * len(turning)
        return self._held_us

    def take_turned_us(self) -> int:
        """Return the time of dedicated instances that had turns, since the last call.

        Where samples of a generate run too, that one's operation has their devices.
        """
        self.held_us()
        taken, self._turned_us = self._turned_us, 0
        return taken

    def _decide(self, event: events.Event) -> list[orders.Order]:
        self.held_us()  # until now, those that were spared before
        ordered = self.core.handle(event)
        for is_so, said in (
            (self.core.is_served, self._is_served),
            (not self.core.finishes_turns, self._has_no_turns),
        ):
            if is_so:
                said.set()
            else:
                said.clear()
        self.progress += isinstance(event, events.TokensArrived) and self.core.finishes_turns
        return ordered

    def _perform(self, order: orders.Order) -> None:
        match order:
            case (
                orders.StartSamples()
                | orders.StopSamples()
                | orders.RecordTokens()
                | orders.AnswerSamples()
            ):
                self.generates[order.operation_id](order)
            case orders.SeekInstance():
                if order.probe == 1:
                    lost = self.core.instances[order.instance_id]
                    log.warning("instance lost", address=lost.address, because=lost.lost_because)
                self._group.create_task(self._seek(order))
            case orders.GiveUpInstance():
                log.warning("instance given up", address=order.address, because=order.because)
                self._let_go(order)
            case orders.ReleaseInstance():
                log.info("instance drained", address=order.address)
                self._let_go(order)
            case orders.UpdateInstance():
                self._group.create_task(self._update(order))
            case orders.EndWindow():
                if self._window is not None and not self._window.done():
                    self._window.set_result(order)
            case orders.LeaveDevice():
                task = self._group.create_task(self._leave(order))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def _let_go(self, order: Gone) -> None:
        """Say that an instance is gone; close its line unless a successor is to take its place."""
        if order.instance_id not in self.core.instances:
            self._group.create_task(self.lines.pop(order.instance_id).channel.close())
        self._gone(order)

    def begin(
        self, operation_id: OperationId, perform: Callable[[orders.SampleOrder], None]
    ) -> None:
        """Have `perform` do what the core orders for a generate; loads are balanced meanwhile."""
        self.generates[operation_id] = perform
        if self._ticking is None:
            self._ticking = self._group.create_task(self._tick())

    def end(self, operation_id: OperationId) -> None:
        """Forget a generate that is over."""
        del self.generates[operation_id]
        if not self.generates and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _tick(self) -> None:
        while True:
            self.post(events.Ticked(at_us=self._clock.monotonic_us()))
            await self._clock.sleep(self._config.balance_us)

    async def _seek(self, order: orders.SeekInstance) -> None:
        await self._clock.sleep(self._config.probe_us)
        one, line = order.instance_id, self.lines.get(order.instance_id)
        if line is None or self._is_closed:
            return
        try:
            found = await line.probe()
        except PlexError as error:
            self.post(events.InstanceLost(instance_id=one, because=error.message, is_probe=True))
            return
        if found.is_asleep and one not in self._asleep:
            because = "it did not wake"
            self.post(events.InstanceLost(instance_id=one, because=because, is_probe=True))
        else:
            log.info("instance answers", address=line.address, version=found.version)
            self.post(
                events.InstanceAnswered(
                    instance_id=one,
                    version=found.version,
                    checksum=found.checksum,
                    is_probe=True,
                    is_asleep=found.is_asleep,
                )
            )

    async def _update(
        self, order: orders.UpdateInstance
    ) -> rollout_pb2.LoadVersionReply | PlexError | None:
        """Return the reply, the refusal, or None when the instance was lost."""
        one, what = order.instance_id, f"load {order.version}"
        line = self.lines.get(one)
        if line is None:
            return None
        try:
            reply = await self._load(line, order.version, fence=line.fence or self.fence)
        except PlexError as error:
            self.post(events.InstanceLost(instance_id=one, because=f"{what}: {error.message}"))
            return None
        refusal = from_wire(reply.error) if reply.HasField("error") else None
        answered = events.InstanceAnswered(
            instance_id=one,
            version=VersionId.of(reply.version),
            checksum=reply.checksum,
            refusal=f"{what}: {refusal.message}" if refusal else "",
        )
        self.post(answered)
        return refusal or reply

    # ---- what operations ask for

    async def connect(
        self, addresses: Sequence[str], *, fence: common_pb2.Fence
    ) -> worker_pb2.DescribeReply:
        """Take these instances in place of those before; return what the first one is.

        They get the version in use, if there is one; samples of the ones before go on with them.
        When one cannot serve it, those before stay.

        Raises:
            PlexError: `unavailable`, naming the instance that does not answer or cannot serve.
        """
        fresh = {InstanceId(next(self._ids)): self._open(address) for address in addresses}
        instances = self.core.instances
        before = {one: line for one, line in self.lines.items() if _is_dedicated(instances, one)}
        try:
            described = [await line.describe() for line in fresh.values()]
            found = {one: await line.probe() for one, line in fresh.items()}
            if before:
                for one, line in fresh.items():
                    found[one] = await self._catch_up(line, found[one], fence=fence)
        except BaseException:
            await close_lines(fresh)
            raise
        kept = {one: line for one, line in self.lines.items() if one not in before}
        self.lines = fresh | kept
        self.fence.CopyFrom(fence)
        self._asleep = {one for one, has in found.items() if has.is_asleep}
        joined = tuple(
            events.InstanceJoined(
                instance_id=one,
                address=line.address,
                version=found[one].version,
                checksum=found[one].checksum,
                is_asleep=found[one].is_asleep,
            )
            for one, line in fresh.items()
        )
        self.post(events.InstancesReplaced(instances=joined))
        await close_lines(before)
        return described[0]

    async def replace(self, index: int, address: str) -> None:
        """Take a new instance in the place of a lost one; it gets the version in use, then samples.

        Safe to repeat.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        if list(self.lines.values())[index].address == address:
            return
        line, found = await self._reach(address)
        gone, one = list(self.lines)[index], InstanceId(next(self._ids))
        before = self.lines[gone]
        kept = self.lines.items()
        self.lines = dict((one, line) if known == gone else (known, old) for known, old in kept)
        joined = events.InstanceJoined(
            instance_id=one, address=address, version=found.version, checksum=found.checksum
        )
        log.info("instance replaced", lost=before.address, address=address)
        self.post(events.SuccessorJoined(of=gone, joined=joined))
        await before.channel.close()

    async def add(self, address: str, *, kind: str) -> None:
        """Take one more instance; it gets the version in use by itself, then samples.

        Safe to repeat.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        if any(line.address == address for line in self.lines.values()):
            return
        line, found = await self._reach(address)
        one = InstanceId(next(self._ids))
        self.lines[one] = line
        log.info("instance added", address=address, kind=kind, version=found.version)
        self.post(
            events.InstanceJoined(
                instance_id=one,
                address=address,
                version=found.version,
                checksum=found.checksum,
                kind=kind,
            )
        )

    def views(self) -> list[tuple[str, service_pb2.InstanceView]]:
        """Return address and state of each instance, but of those in the seeding window."""
        found = self.core.instances.values()
        return [(one.address, self._view(one)) for one in found if one.kind is not RESERVED]

    def reserved(self) -> dict[str, service_pb2.InstanceView]:
        """Return state by address of the instances in the seeding window."""
        found = self.core.instances.values()
        return {one.address: self._view(one) for one in found if one.kind is RESERVED}

    def _view(self, one: Instance) -> service_pb2.InstanceView:
        return service_pb2.InstanceView(
            kind=one.kind.name,
            phase=one.phase.value,
            deployment_id=self.core.deployment_id,
            version=one.version.version,
            running=one.running,
            pending=len(one.pending),
            tokens_per_s=one.tokens_per_s if self.generates else 0,
            because=one.lost_because,
        )

    def drain(self, address: str) -> None:
        """Have an instance's samples go on elsewhere, and let it go then."""
        for one, line in self.lines.items():
            if line.address == address:
                self.post(events.InstanceDrained(instance_id=one))
                return

    def drop(self, address: str, *, because: str) -> None:
        """Forget an instance whose process has ended; its calls break by themselves."""
        for one, line in list(self.lines.items()):
            if line.address == address and not _is_dedicated(self.core.instances, one):
                self.post(events.InstanceEnded(instance_id=one, because=because))
                self._group.create_task(self.lines.pop(one).channel.close())

    async def finish_turns(self) -> None:
        """Return when the turns under way have ended; others wait for the version that follows."""
        self.post(events.TurnsHeld())
        try:
            await self._has_no_turns.wait()
        except asyncio.CancelledError:
            self.post(events.TurnsHeld(is_over=True))
            raise

    async def seed(
        self,
        operation_id: OperationId,
        addresses: Sequence[str],
        *,
        fence: common_pb2.Fence,
        trained: events.Trained | None,
    ) -> orders.EndWindow:
        """Let engines on training devices serve with these until the core closes the window.

        They wake with the version in use. Returns when the last one has left. One that does not
        come is left out; the window is over when none comes.
        """
        window: asyncio.Future[orders.EndWindow] = asyncio.get_running_loop().create_future()
        self._window = window
        opened = events.WindowOpened(
            at_us=self._clock.monotonic_us(),
            operation_id=operation_id,
            engines=len(addresses),
            trained=trained,
        )
        self.post(opened)
        if window.done():  # nothing to serve: no engine is woken for it
            return window.result()
        joining = self._group.create_task(self._join_all(addresses, fence=fence))
        try:
            over = await window
            await asyncio.wait([joining])  # one that wakes must not be told to sleep meanwhile
            return over
        finally:
            joining.cancel()
            if not window.done():
                self.post(events.WindowLeft(at_us=self._clock.monotonic_us()))
            self._window = None

    async def _join_all(self, addresses: Sequence[str], *, fence: common_pb2.Fence) -> None:
        """Take engines on training devices; leave the window if none came."""
        joins = [self._join_window(address, fence=fence) for address in addresses]
        if not any(await asyncio.gather(*joins)):
            self.post(events.WindowLeft(at_us=self._clock.monotonic_us()))

    async def _join_window(self, address: str, *, fence: common_pb2.Fence) -> bool:
        """Wake an engine and take it; return whether it came."""
        line = self._open(address, fence=fence)
        try:
            reply = await self._woken(line, fence=fence)
        except BaseException as error:
            await line.channel.close()
            if not isinstance(error, PlexError):
                raise
            log.warning("engine not in the seeding window", address=address, error=error)
            return False
        if self._window is None or self._window.done():  # it came too late
            await line.channel.close()
            return False
        one = InstanceId(next(self._ids))
        self.lines[one] = line
        log.info("engine joined the seeding window", address=address)
        joined = events.InstanceJoined(
            instance_id=one,
            address=address,
            version=VersionId.of(reply.version),
            checksum=reply.checksum,
            kind=RESERVED.name,
        )
        self.post(joined)
        return True

    async def _woken(self, line: Line, *, fence: common_pb2.Fence) -> rollout_pb2.LoadVersionReply:
        reply = await self._load(line, self.core.version, fence=fence)
        if reply.HasField("error"):
            raise from_wire(reply.error)
        return reply

    async def load(
        self, source: statemanager_pb2.PublishedVersion, *, wakes: bool = True
    ) -> list[rollout_pb2.LoadVersionReply]:
        """Load a version on all instances at once; return the replies of the dedicated ones.

        Those of other kinds load it in their own time, and serve then. When all dedicated ones are
        lost meanwhile, whoever takes their place loads it. Unless it `wakes` those that sleep, they
        load it when they wake.

        Raises:
            PlexError: what an instance refused with.
        """
        version = VersionId.of(source)
        self._loads.sources[version] = source
        if wakes:
            self._asleep.clear()
        ordered = self._decide(events.VersionWanted(version=version, wakes=wakes))
        updates = [order for order in ordered if isinstance(order, orders.UpdateInstance)]
        async with asyncio.TaskGroup() as group:
            tasks = []
            for order in updates:
                if _is_dedicated(self.core.instances, order.instance_id):
                    tasks.append(group.create_task(self._update(order)))
                else:
                    self._group.create_task(self._update(order))
        outcomes = [task.result() for task in tasks]
        self._loads.forget_but(self.core.version)
        for outcome in outcomes:
            if isinstance(outcome, PlexError):
                raise outcome
        loaded = [one for one in outcomes if isinstance(one, rollout_pb2.LoadVersionReply)]
        if not loaded and not self.asleep():
            await self._is_served.wait()
            loaded = [rollout_pb2.LoadVersionReply(checksum=self.core.checksum)]
        return loaded

    async def sleep(self) -> rollout_pb2.MoveInstancesReply:
        """Have every instance give its memory back; nothing of the deployment runs meanwhile.

        Raises:
            PlexError: what an instance refused with.
        """
        slept = rollout_pb2.MoveInstancesReply()
        for one, line in list(self.lines.items()):
            self._asleep.add(one)
            reply = await self._lay_down(one, line)
            if reply is None:
                slept.unreached.append(line.address)
            elif reply.HasField("error"):
                raise from_wire(reply.error)
            else:
                slept.nbytes += reply.nbytes
        return slept

    def asleep(self) -> list[str]:
        """Return the addresses of the instances that sleep."""
        return [self.lines[one].address for one in sorted(self._asleep) if one in self.lines]

    async def left(self) -> None:
        """Return once those that generates did without sleep, or are lost."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    async def _leave(self, order: orders.LeaveDevice) -> None:
        """Have an instance sleep that a generate does without, and say so."""
        one, line = order.instance_id, self.lines.get(order.instance_id)
        if line is None:
            return
        self._asleep.add(one)
        reply = await self._lay_down(one, line)
        if reply is not None and not reply.HasField("error"):
            log.info("instance left its device", address=line.address)
            self._gone(order)
            return
        self._asleep.discard(one)
        if reply is not None:
            because = f"sleep: {from_wire(reply.error).message}"
            self.post(events.InstanceLost(instance_id=one, because=because))

    async def _lay_down(self, one: InstanceId, line: Line) -> rollout_pb2.SleepReply | None:
        """Have an instance sleep; return its reply, or None when it was lost."""
        try:
            request = rollout_pb2.SleepRequest(fence=self.fence)
            reply = await line.stub.Sleep(request, timeout=SLEEP_CALL_S)
        except grpc.aio.AioRpcError as error:
            because = f"sleep: {error_from(error).message}"
            self.post(events.InstanceLost(instance_id=one, because=because))
            return None
        known = self.core.instances.get(one)
        if known is not None and not reply.HasField("error"):
            self.post(
                events.InstanceAnswered(
                    instance_id=one,
                    version=known.version,
                    checksum=known.checksum,
                    is_asleep=True,
                )
            )
        return reply

    async def wake(self, *, is_for_pull: bool) -> rollout_pb2.MoveInstancesReply:
        """Wake every instance with the version in use; before a pull that is left to it.

        One that does not wake is lost, and sought like others.
        """
        if is_for_pull:
            return rollout_pb2.MoveInstancesReply()
        self._asleep.clear()
        updates = [
            orders.UpdateInstance(instance_id=one, version=self.core.version) for one in self.lines
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._update(update)) for update in updates]
        woken = rollout_pb2.MoveInstancesReply()
        for update, task in zip(updates, tasks, strict=True):
            reply = task.result()
            if isinstance(reply, PlexError):
                because = f"wake: {reply.message}"
                self.post(events.InstanceLost(instance_id=update.instance_id, because=because))
            elif reply is not None:
                woken.nbytes += reply.nbytes
        return woken

    async def encode(self, prompts: Sequence[operations_pb2.Prompt], *, texts: bool) -> None:
        """Have an instance put token ids in the place of texts and chats; beside them `texts`.

        Raises:
            PlexError: `bad_request` for what the model cannot read; `unavailable`.
        """
        if not prompts:
            return
        able = [(one.load, i) for i, one in self.core.instances.items() if one.is_serving]
        if not able:
            raise PlexError(ErrorCode.UNAVAILABLE, f"no instance serves {self.core.deployment_id}")
        stub = self.lines[min(able)[1]].stub
        request = rollout_pb2.EncodeRequest(prompts=prompts, texts=texts)
        try:
            reply = await stub.Encode(request, timeout=ENCODE_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        for prompt, encoded in zip(prompts, reply.prompts, strict=True):
            prompt.CopyFrom(encoded)

    async def close(self) -> None:
        """Close all channels; running calls end as lost."""
        self._is_closed = True
        await close_lines(self.lines)

    # ---- calls

    async def _catch_up(self, line: Line, found: Served, *, fence: common_pb2.Fence) -> Served:
        """Give a successor the version in use; return that."""
        wanted = self.core.version
        if found.version == wanted:
            return found
        because = "it has another"
        if wanted in self._loads.sources:
            try:
                reply = await self._load(line, wanted, fence=fence)
            except PlexError as error:
                because = f"load {wanted}: {error.message}"
            else:
                if not reply.HasField("error"):
                    return Served(VersionId.of(reply.version), reply.checksum)
                because = f"load {wanted}: {from_wire(reply.error).message}"
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"instance {line.address} of {self.core.deployment_id} cannot serve "
            f"{wanted}: {because}; the instances before go on",
        )

    async def _load(
        self, line: Line, version: VersionId, *, fence: common_pb2.Fence
    ) -> rollout_pb2.LoadVersionReply:
        is_parked = self.core.is_shared or line.fence is not None
        return await self._loads.load(line, version, fence=fence, wakes=is_parked)

    def _get_on(self) -> None:
        self.progress += 1

    def _open(self, address: str, *, fence: common_pb2.Fence | None = None) -> Line:
        deployment_id = self.core.deployment_id
        return open_line(address, keys=self._keys, deployment_id=deployment_id, fence=fence)

    async def _reach(self, address: str) -> tuple[Line, Served]:
        """Return a line to an instance that answers, and what it serves; else no line is left."""
        line = self._open(address)
        try:
            return line, await line.probe()
        except BaseException:
            await line.channel.close()
            raise


def _is_dedicated(instances: Mapping[InstanceId, Instance], one: InstanceId) -> bool:
    """Whether an instance is dedicated, as one is that the core has forgotten."""
    return one not in instances or instances[one].kind is DEDICATED

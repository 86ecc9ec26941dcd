"""One rollout deployment: its instances, as the rollout core orders.

`post` gives the core an event and performs the orders that follow. What a generate is ordered goes
to its `Generation`; what concerns instances is done here, in tasks of the manager's group.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

import grpc.aio

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import (
    common_pb2,
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
from plexsvc.rollout.core.instances import DEDICATED
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.lines import InstanceLine, ServedVersion, close_lines
from plexsvc.rollout.validation import GenerateLimits
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

SLEEP_CALL_S: Final = 30.0
"""How long an instance may take to end its step and go to sleep."""


UNREAD: Final = frozenset({ErrorCode.NOT_FOUND, ErrorCode.UNAVAILABLE, ErrorCode.NODE_LOST})
"""Refusals to load a version that its holders did not give."""


class RolloutDeployment:
    """A deployment's instances and limits, and how far its order has come.

    Owned by the event loop; its tasks live in `group`.
    """

    def __init__(
        self,
        deployment_id: str,
        *,
        wpg_id: str,
        config: RolloutConfig,
        clock: Clock,
        group: asyncio.TaskGroup,
        keys: ClusterKeys,
        tell: Callable[[rollout_pb2.ManagerNews], None],
    ) -> None:
        """`tell` what becomes of instances: those that are gone, or left by a generate."""
        self.deployment_id, self.wpg_id = deployment_id, wpg_id
        self.applied_seq = 0
        self.exclusive_seq = 0
        """Highest Pull that began to load; what is not known from before comes too late."""
        self.describe = worker_pb2.DescribeReply()
        self.seeds = ""
        """The deployment whose generates these instances serve, if they have none of their own."""
        self.takes_weights = False
        """Whether its weights come from another deployment, by `sync`."""
        self.limits = GenerateLimits(vocab_size=0, max_model_len=0, max_samples=0)
        self.core = RolloutCore(
            deployment_id,
            max_losses=config.max_tries_per_sample,
            max_pending=config.max_pending,
            cut=config.cuts_at or None,
        )
        self.fence = common_pb2.Fence()
        self.generates: dict[OperationId, Callable[[orders.SampleOrder], None]] = {}
        """Who performs the orders of each generate."""
        self.lines: dict[InstanceId, InstanceLine] = {}
        self.sources: dict[VersionId, statemanager_pb2.PublishedVersion] = {}
        """Where the wanted version lies and, while that is loaded, of the one before."""
        self.asleep: set[InstanceId] = set()
        """Those that are to sleep, so that others have their devices."""
        self.progress = 0
        """Grows while instances load or send tokens, and turns run that a version waits for."""
        self.is_served, self.has_no_turns = asyncio.Event(), asyncio.Event()
        self.window: asyncio.Future[orders.EndWindow] | None = None
        """The operation that had the seeding window opened waits for its end."""
        self.config, self.clock, self.group = config, clock, group
        self._keys, self._tell = keys, tell
        self._ids = itertools.count(1)
        self._ticking: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._held_us, self._turned_us, self._held_at_us = 0, 0, clock.monotonic_us()
        self._is_closed = False

    # ---- events in, orders out

    def post(self, event: events.Event) -> None:
        """Give the core an event and perform the orders that follow."""
        for order in self.decide(event):
            if not self._is_closed:
                self._perform(order)

    def decide(self, event: events.Event) -> list[orders.Order]:
        """Give the core an event; return the orders that follow."""
        self.held_us()  # until now, those that were spared before
        ordered = self.core.handle(event)
        for is_so, said in (
            (self.core.is_served, self.is_served),
            (not self.core.finishes_turns, self.has_no_turns),
        ):
            if is_so:
                said.set()
            else:
                said.clear()
        self.progress += isinstance(event, events.TokensArrived) and self.core.finishes_turns
        return ordered

    def held_us(self) -> int:
        """Return the time of all instances together, but where generates did without them."""
        now_us = self.clock.monotonic_us()
        elapsed_us, self._held_at_us = now_us - self._held_at_us, now_us
        instances, spared = self.core.instances, self.core.spared | self.asleep
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
                self.group.create_task(self._seek(order.instance_id))
            case orders.GiveUpInstance():
                log.warning("instance given up", address=order.address, because=order.because)
                is_dedicated = order.kind == DEDICATED.name
                self._let_go(order, because=order.because, is_dedicated=is_dedicated)
            case orders.ReleaseInstance():
                log.info("instance drained", address=order.address)
                self._let_go(order)
            case orders.UpdateInstance():
                self.group.create_task(self.update(order))
            case orders.EndWindow():
                if self.window is not None and not self.window.done():
                    self.window.set_result(order)
            case orders.LeaveDevice():
                task = self.group.create_task(self._leave(order))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def _let_go(
        self,
        order: orders.GiveUpInstance | orders.ReleaseInstance,
        *,
        because: str = "",
        is_dedicated: bool = False,
    ) -> None:
        """Say that an instance is gone; close its line unless a successor is to take its place."""
        if order.instance_id not in self.core.instances:
            self.group.create_task(self.lines.pop(order.instance_id).channel.close())
        gone = rollout_pb2.InstanceGone(
            wpg_id=self.wpg_id, address=order.address, because=because, is_dedicated=is_dedicated
        )
        self._tell(rollout_pb2.ManagerNews(gone=gone))

    def begin(
        self, operation_id: OperationId, perform: Callable[[orders.SampleOrder], None]
    ) -> None:
        """Have `perform` do what the core orders for a generate; loads are balanced meanwhile."""
        self.generates[operation_id] = perform
        if self._ticking is None:
            self._ticking = self.group.create_task(self._tick())

    def end(self, operation_id: OperationId) -> None:
        """Forget a generate that is over."""
        del self.generates[operation_id]
        if not self.generates and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _tick(self) -> None:
        while True:
            self.post(events.Ticked(at_us=self.clock.monotonic_us()))
            await self.clock.sleep(self.config.balance_us)

    async def _seek(self, one: InstanceId) -> None:
        """Ask a lost instance in a while."""
        await self.clock.sleep(self.config.probe_us)
        line = self.lines.get(one)
        if line is None or self._is_closed:
            return
        try:
            found = await line.probe()
        except PlexError as error:
            self.post(
                events.InstanceCallFailed(instance_id=one, because=error.message, is_probe=True)
            )
            return
        if found.is_asleep and one not in self.asleep:
            because = "it did not wake"
            self.post(events.InstanceCallFailed(instance_id=one, because=because, is_probe=True))
            return
        log.info("instance answers", address=line.address, version=found.version)
        answered = events.InstanceAnswered(instance_id=one, is_probe=True, **found._asdict())
        self.post(answered)

    async def update(
        self, order: orders.UpdateInstance
    ) -> rollout_pb2.LoadVersionReply | PlexError | None:
        """Have an instance load a version; return its reply or refusal, None when it was lost."""
        one, what = order.instance_id, f"load {order.version}"
        line = self.lines.get(one)
        if line is None:
            return None
        try:
            reply = await self.load(line, order.version, fence=line.fence or self.fence)
        except PlexError as error:
            self.post(
                events.InstanceCallFailed(instance_id=one, because=f"{what}: {error.message}")
            )
            return None
        refusal = from_wire(reply.error) if reply.HasField("error") else None
        is_unread = refusal is not None and refusal.code in UNREAD
        answered = events.InstanceAnswered(
            instance_id=one,
            version=VersionId.of(reply.version),
            checksum=reply.checksum,
            refusal=f"{what}: {refusal.message}" if refusal else "",
            is_unread=is_unread,
        )
        self.post(answered)
        return refusal or reply

    async def load(
        self, line: InstanceLine, version: VersionId, *, fence: common_pb2.Fence
    ) -> rollout_pb2.LoadVersionReply:
        """Have the instance behind a line load a version, or wake with it.

        Raises:
            PlexError: `unavailable` when it hangs or is gone.
        """
        source = self.sources.get(version, statemanager_pb2.PublishedVersion(**version._asdict()))
        return await line.load(
            rollout_pb2.LoadVersionRequest(fence=fence, published=source),
            wakes=self.core.is_shared or line.fence is not None,
            stall_us=self.config.load_stall_us,
            clock=self.clock,
            group=self.group,
            got_on=self._get_on,
        )

    def locate(self, source: statemanager_pb2.PublishedVersion) -> None:
        """Have instances that lack the version in use read it from these holders; none: it is lost.

        One that is lost stays with the instances that have it, until another is wanted.
        """
        version = VersionId.of(source)
        if version != self.core.version:
            return
        self.sources[version] = source
        log.info("version located", version=version, holders=len(source.holders))
        if not source.holders:
            self.post(events.VersionLost(version=version))

    def _get_on(self) -> None:
        self.progress += 1

    # ---- instances that come and go

    async def replace(self, index: int, address: str) -> str:
        """Take a new instance in the place of a lost one; return the address of that.

        It gets the version in use, then samples. Safe to repeat.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        known = list(self.lines.values())[index].address
        if known == address:
            return known
        line, found = await self._reach(address)
        gone, one = list(self.lines)[index], self.new_id()
        before = self.lines[gone]
        kept = self.lines.items()
        self.lines = dict((one, line) if known == gone else (known, old) for known, old in kept)
        log.info("instance replaced", lost=before.address, address=address)
        self.post(events.SuccessorJoined(of=gone, joined=joined(one, line, found)))
        await before.channel.close()
        return before.address

    async def add(self, address: str, *, kind: str) -> None:
        """Take one more instance; it gets the version in use by itself, then samples.

        Safe to repeat.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        if any(line.address == address for line in self.lines.values()):
            return
        line, found = await self._reach(address)
        log.info("instance added", address=address, kind=kind, version=found.version)
        self.join(line, found, kind=kind)

    def join(self, line: InstanceLine, found: ServedVersion, *, kind: str) -> None:
        """Take an instance that serves what was `found`."""
        one = self.new_id()
        self.lines[one] = line
        self.post(joined(one, line, found, kind=kind))

    def drain(self, address: str) -> None:
        """Have an instance's samples go on elsewhere, and let it go then."""
        for one, line in self.lines.items():
            if line.address == address:
                self.post(events.InstanceDrained(instance_id=one))
                return

    def drop(self, address: str, *, because: str) -> None:
        """Forget an instance whose process has ended; its calls break by themselves."""
        for one, line in list(self.lines.items()):
            if line.address == address and not self.is_dedicated(one):
                self.post(events.InstanceEnded(instance_id=one, because=because))
                self.group.create_task(self.lines.pop(one).channel.close())

    async def lay_down(self, one: InstanceId, line: InstanceLine) -> rollout_pb2.SleepReply | None:
        """Have an instance sleep; return its reply, or None when it was lost."""
        self.asleep.add(one)
        try:
            request = rollout_pb2.SleepRequest(fence=self.fence)
            reply = await line.stub.Sleep(request, timeout=SLEEP_CALL_S)
        except grpc.aio.AioRpcError as error:
            because = f"sleep: {error_from(error).message}"
            self.post(events.InstanceCallFailed(instance_id=one, because=because))
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

    async def _leave(self, order: orders.LeaveDevice) -> None:
        """Have an instance sleep that a generate does without, and say so."""
        one, line = order.instance_id, self.lines.get(order.instance_id)
        if line is None:
            return
        reply = await self.lay_down(one, line)
        if reply is not None and not reply.HasField("error"):
            log.info("instance left its device", address=line.address)
            left = rollout_pb2.InstanceLeft(
                wpg_id=self.wpg_id, address=order.address, operation_id=order.operation_id
            )
            self._tell(rollout_pb2.ManagerNews(left=left))
            return
        self.asleep.discard(one)
        if reply is not None:
            because = f"sleep: {from_wire(reply.error).message}"
            self.post(events.InstanceCallFailed(instance_id=one, because=because))

    async def left(self) -> None:
        """Return once those that generates did without sleep, or are lost."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    def views(self) -> dict[str, service_pb2.InstanceView]:
        """Return the state of each instance by address."""
        return {
            one.address: service_pb2.InstanceView(
                kind=one.kind.name,
                phase=one.phase.value,
                deployment_id=self.deployment_id,
                version=one.version.version,
                running=one.running,
                pending=len(one.pending),
                tokens_per_s=one.tokens_per_s if self.generates else 0,
                because=one.lost_because,
                engine=self.lines[i].engine if i in self.lines else "",
            )
            for i, one in self.core.instances.items()
        }

    async def close(self) -> None:
        """Close all channels; running calls end as lost."""
        self._is_closed = True
        await close_lines(self.lines)

    def is_dedicated(self, one: InstanceId) -> bool:
        """Whether an instance is dedicated, as one is that the core has forgotten."""
        known = self.core.instances.get(one)
        return known is None or known.kind is DEDICATED

    def new_id(self) -> InstanceId:
        """Return an id that no instance has had."""
        return InstanceId(next(self._ids))

    def open(self, address: str, *, fence: common_pb2.Fence | None = None) -> InstanceLine:
        """Return a line to an instance; nothing is sent yet."""
        return InstanceLine(address, open_channel(address, self._keys), self.deployment_id, fence)

    async def _reach(self, address: str) -> tuple[InstanceLine, ServedVersion]:
        """Return a line to an instance that answers, and what it serves; else no line is left."""
        line = self.open(address)
        try:
            found = await line.probe()
            await line.describe()
        except BaseException:
            await line.channel.close()
            raise
        return line, found


def joined(
    one: InstanceId, line: InstanceLine, found: ServedVersion, *, kind: str = DEDICATED.name
) -> events.InstanceJoined:
    """Return what the core is told of an instance that serves what was `found`."""
    return events.InstanceJoined(
        instance_id=one, address=line.address, kind=kind, **found._asdict()
    )

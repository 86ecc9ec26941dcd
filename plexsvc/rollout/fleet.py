"""The instances of one deployment: which serve, how loaded they are, and getting lost ones back.

Theory of operation. An instance is *serving* while it answers and holds the deployment's version.
A failed call makes it *lost*: it gets no work, and a task probes it. When it answers again it is
given the current version if it has another, and serves again; after `max_probes` it stays lost
until the scheduler initialises the deployment anew with the addresses of its successors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import (
    common_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    statemanager_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.retry import Patience, retry

log = Log(__name__)

MAX_PROBES: Final = 240
"""Looks at a lost instance before it is given up."""

PROBE_CALL_S: Final = 2.0


@dataclass(slots=True, eq=False)
class Instance:
    """One engine process as the manager sees it."""

    address: str
    channel: grpc.aio.Channel
    version: int = 0
    in_flight: int = 0
    """Samples it was given and has not finished."""
    is_serving: bool = False
    is_sought: bool = False
    """Whether a task looks for it."""
    lost_because: str = ""

    @property
    def stub(self) -> rollout_pb2_grpc.RolloutInstanceAsyncStub:
        """Return the typed calls."""
        return rollout_pb2_grpc.RolloutInstanceStub(self.channel)


class Fleet:
    """All instances of a deployment. Owned by the event loop; its tasks live in `group`."""

    def __init__(
        self,
        deployment_id: str,
        *,
        config: RolloutConfig,
        clock: Clock,
        group: asyncio.TaskGroup,
    ) -> None:
        self.deployment_id = deployment_id
        self.version = 0
        self.instances: list[Instance] = []
        self.fence = common_pb2.Fence()
        self._manifests: list[statemanager_pb2.VersionManifest] = []
        self._config, self._clock, self._group = config, clock, group
        self._served = asyncio.Event()
        self._is_closed = False

    async def connect(
        self, addresses: Sequence[str], *, fence: common_pb2.Fence
    ) -> worker_pb2.DescribeReply:
        """Take these instances in place of those before; return what the first one is.

        They get the version in use, if there is one; samples of the ones before go on with them.
        When one cannot serve it, those before stay.

        Raises:
            PlexError: `unavailable`, naming the instance that does not answer or cannot serve.
        """
        fresh = [Instance(address, open_channel(address)) for address in addresses]
        before, old_fence = self.instances, common_pb2.Fence()
        old_fence.CopyFrom(self.fence)
        self.fence.CopyFrom(fence)
        try:
            described = await self._prepare(fresh, is_successor=bool(before))
        except BaseException:
            self.fence.CopyFrom(old_fence)
            for instance in fresh:
                await instance.channel.close()
            raise
        self.instances = fresh
        for instance in before:
            instance.is_serving = False
            await instance.channel.close()
        return described

    async def _prepare(
        self, fresh: Sequence[Instance], *, is_successor: bool
    ) -> worker_pb2.DescribeReply:
        """Bring instances to the version in use; return what the first one is."""
        described = [await self._describe(instance) for instance in fresh]
        if not self._manifests and not is_successor:  # a new manager adopts what they have
            self.version = max([await self._probe(instance) for instance in fresh])
        for instance in fresh:
            await self._catch_up(instance)
            if is_successor and not instance.is_serving:
                raise PlexError(
                    ErrorCode.UNAVAILABLE,
                    f"instance {instance.address} of {self.deployment_id} cannot serve version "
                    f"{self.version}: {instance.lost_because or 'it has another'}; the instances "
                    "before go on",
                )
        return described[0]

    def serving(self) -> list[Instance]:
        """Return the up-to-date instances that answer."""
        return [instance for instance in self.instances if instance.is_serving]

    async def wait_serving(self) -> list[Instance]:
        """Return the serving instances, waiting for one if there is none.

        Raises:
            PlexError: `worker_died` when none came back in `rollout.instance_wait_us`.
        """
        try:
            async with asyncio.timeout(self._config.instance_wait_us / 1e6):
                while not (serving := self.serving()):
                    self._served.clear()
                    await self._served.wait()
        except TimeoutError as error:
            raise self.death("no instance serves") from error
        return serving

    def death(self, what: str) -> PlexError:
        """Return the error that says which instances are lost and why."""
        lost = [f"{i.address} ({i.lost_because})" for i in self.instances if not i.is_serving]
        return PlexError(
            ErrorCode.WORKER_DIED,
            f"{what} of {self.deployment_id}; lost: {', '.join(lost) or 'none'}; submit the "
            f"generate again once the deployment is ready",
            deployment_id=self.deployment_id,
            instances=", ".join(i.address for i in self.instances if not i.is_serving),
        )

    def lose(self, instance: Instance, because: str) -> None:
        """Give `instance` no more work and start to look for it."""
        if instance.is_serving:
            self._miss(instance, because)

    def _miss(self, instance: Instance, because: str) -> None:
        instance.is_serving, instance.lost_because = False, because
        log.warning("instance lost", address=instance.address, because=because)
        if not self._is_closed and not instance.is_sought and instance in self.instances:
            instance.is_sought = True
            self._group.create_task(self._revive(instance))

    async def load(
        self, manifests: Sequence[statemanager_pb2.VersionManifest], *, version: int
    ) -> list[rollout_pb2.LoadVersionReply]:
        """Load `version` on all instances at once; return the replies of those that have it.

        Raises:
            PlexError: what an instance refused with; `worker_died` when none could load it.
        """
        before = (self.version, self._manifests)
        self.version, self._manifests = version, list(manifests)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._load(instance)) for instance in self.instances]
        outcomes = [task.result() for task in tasks]
        loaded = [one for one in outcomes if isinstance(one, rollout_pb2.LoadVersionReply)]
        refusals = [one for one in outcomes if isinstance(one, PlexError)]
        if refusals and not loaded:
            self.version, self._manifests = before
            for instance in self.instances:
                self._serve(instance)
        if refusals:
            raise refusals[0]
        if not loaded:
            raise self.death(f"no instance could load version {version}")
        return loaded

    async def close(self) -> None:
        """Close all channels; running calls end as lost."""
        self._is_closed = True
        for instance in self.instances:
            instance.is_serving = False
            await instance.channel.close()

    async def _catch_up(self, instance: Instance) -> None:
        """Give an instance that answers the version in use; it serves if it has it then."""
        instance.version = await self._probe(instance)
        if instance.version != self.version and self._manifests:
            await self._load(instance)
        else:
            self._serve(instance)

    def _serve(self, instance: Instance) -> None:
        instance.is_serving = instance.version == self.version
        if instance.is_serving:
            instance.lost_because = ""
            self._served.set()

    async def _load(self, instance: Instance) -> rollout_pb2.LoadVersionReply | PlexError | None:
        """Return the reply, the refusal, or None when the instance was lost."""
        instance.is_serving = False
        request = rollout_pb2.LoadVersionRequest(
            fence=self.fence, manifests=self._manifests, version=self.version
        )
        try:
            reply = await instance.stub.LoadVersion(request, timeout=self._config.call_us / 1e6)
        except grpc.aio.AioRpcError as error:
            self._miss(instance, f"load version {self.version}: {error_from(error).message}")
            return None
        instance.version = reply.version
        if reply.HasField("error"):
            refusal = from_wire(reply.error)
            instance.lost_because = f"load version {request.version}: {refusal.message}"
            return refusal
        self._serve(instance)
        return reply

    async def _revive(self, instance: Instance) -> None:
        async def probe() -> None:
            if self._is_closed or instance not in self.instances:
                return
            await self._catch_up(instance)
            if instance not in self.serving():
                raise PlexError(ErrorCode.UNAVAILABLE, instance.lost_because)
            log.info("instance back", address=instance.address, version=instance.version)

        patience = Patience(pause_us=self._config.probe_us, max_tries=MAX_PROBES)
        try:
            await self._clock.sleep(self._config.probe_us)
            await retry(
                probe, on=PlexError, clock=self._clock, patience=patience, what=instance.address
            )
        except PlexError:
            because = instance.lost_because
            log.error("instance given up", address=instance.address, because=because)  # noqa: TRY400 - no bug
        finally:
            instance.is_sought = False

    async def _probe(self, instance: Instance) -> int:
        try:
            stats = await instance.stub.Stats(
                rollout_pb2.InstanceStatsRequest(), timeout=PROBE_CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._silent(instance, error) from error
        return int(stats.version)

    async def _describe(self, instance: Instance) -> worker_pb2.DescribeReply:
        stub = worker_pb2_grpc.WorkerStub(instance.channel)
        try:
            request = worker_pb2.DescribeRequest()
            reply: worker_pb2.DescribeReply = await stub.Describe(request, timeout=PROBE_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise self._silent(instance, error) from error
        return reply

    def _silent(self, instance: Instance, error: grpc.aio.AioRpcError) -> PlexError:
        return PlexError(
            ErrorCode.UNAVAILABLE,
            f"instance {instance.address} of {self.deployment_id} does not answer: "
            f"{error_from(error).message}",
            instance=instance.address,
        )

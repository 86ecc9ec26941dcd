"""Rollout managers of a cluster, as the scheduler reaches them: processes of its nodes.

Theory of operation. A job's deployments are all with one manager, on the node that has most
instances of the first of them (`crew`). What a manager would need after a restart is kept here
(`links`): how each deployment was initialised, its instances, and the version they serve. Orders
that were under way when one died are repeated until its successor takes them, and that goes on from
the token records of the one before. The pools of spot devices and of lent engines are here, because
all managers share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc.aio
import msgspec

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
from plexsvc.ids import DeploymentId, VersionId
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core.instances import SPOT
from plexsvc.rollout.core.pool import Generating, Wanted
from plexsvc.rollout.crew import ManagerCrew
from plexsvc.rollout.links import (
    AWAY,
    CALL_S,
    RETRY_US,
    KeptDeployment,
    LedDeployment,
    ManagerNodes,
    cancel,
    no_deployment,
    note_of,
    restoring,
)
from plexsvc.rollout.spot import Pools
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

GivenUp = Callable[[str, str, str], None]
"""Takes a WPG, the address of one of its instances, and why that is given up."""

Left = Callable[[str, str, bytes], None]
"""Takes a WPG, the address of one that sleeps, and the generate that goes on without it."""

Turned = Callable[[str, int], None]
"""Takes a WPG, and for how many microseconds its instances sampled turns, all together."""

LOOK_US: Final = 1_000_000
"""How often beats are looked for."""
SILENT_US: Final = 15_000_000


class Managers(Pools):
    """All managers of a cluster. `run` must be running.

    Attributes:
        hosts: the nodes; given before anything is asked.
    """

    hosts: ManagerNodes

    def __init__(
        self, config: RolloutConfig, *, clock: Clock, keys: ClusterKeys, directory: Path
    ) -> None:
        """Lead managers by `config`.

        `directory` keeps the names of spot devices and engines that operators closed.

        Raises:
            PlexError: `bad_request` for a file there that is no such list.
        """
        super().__init__(clock=clock, directory=directory)
        self._crew = ManagerCrew(config, self, self._deployments, clock=clock, keys=keys)
        self._report: GivenUp | None = None
        self._report_left: Left | None = None
        self._report_turns: Turned | None = None
        self._group: asyncio.TaskGroup | None = None
        self._telling: dict[str, asyncio.Task[None]] = {}
        """Who tells the manager of a deployment what it was not told while it was away."""

    async def run(self) -> None:
        """Follow every manager until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self.lent.run())
                while True:
                    await self._crew.look(self._group)
                    await self._clock.sleep(LOOK_US)
                    for one, deployment in self._deployments.items():
                        telling = self._telling.get(one)
                        is_telling = telling is not None and not telling.done()
                        if deployment.has_untold and deployment.link.is_up and not is_telling:
                            telling = self._group.create_task(deployment.tell_again())
                            self._telling[one] = telling
        finally:
            await self._crew.close()

    # ---- what the scheduler orders

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation of a rollout deployment, with the successor if its manager dies.

        Raises:
            PlexError: `not_found` for a deployment that is gone.
        """
        operation, body = request.operation, request.operation.WhichOneof("body")
        deployment_id = operation.deployment_id
        if body == "initialize" and deployment_id not in self._deployments:
            self._place(deployment_id, job_id=operation.job_id)
        deployment = self._deployment(deployment_id)
        if body in {"initialize", "pull"}:
            deployment.fence.CopyFrom(request.fence)
        if body == "pull":
            deployment.versions.add(VersionId.of(request.published))
        if body == "generate":
            self._count(deployment, 1)
        try:
            reply = await deployment.execute(request)
        finally:
            if body == "generate":
                self._count(deployment, -1)
        if reply.result.HasField("error"):
            return reply
        if body == "initialize":
            deployment.initialized, deployment.led_by = request, deployment.link.incarnation
            deployment.addresses = list(request.instance_addresses)
            await self.keep(deployment)
            self._want(deployment)
        elif body == "pull":
            deployment.pulled = request
            deployment.versions = {VersionId.of(request.published)}
            await self.keep(deployment)
        elif body == "seed" and "most_instances" in reply.result.metrics:
            self._bound(deployment, most=int(reply.result.metrics["most_instances"]))
        return reply

    def _place(self, deployment_id: str, *, job_id: str) -> None:
        """Give a deployment to the manager of its job, or to one near its instances.

        Raises:
            PlexError: `node_lost` when no node is up.
        """
        theirs = (one.link for one in self._deployments.values() if one.job_id == job_id)
        link = next(theirs, None) or self._crew.chosen(self.hosts.places(deployment_id))
        self._deployments[deployment_id] = LedDeployment(deployment_id, job_id, link, self._clock)

    def _count(self, deployment: LedDeployment, more: int) -> None:
        """Count the generates that run, and tell the pools of the first and the last."""
        deployment.generates += more
        told = Generating(
            deployment_id=DeploymentId(deployment.deployment_id),
            is_generating=deployment.generates > 0,
        )
        for pool in self._pools:
            pool.post(told)

    def _want(self, deployment: LedDeployment) -> None:
        """Ask the pools for the instances that a deployment wants of each kind."""
        for pool in self._pools:
            pool.post(deployment.wants(pool.kind.name))

    async def keep(self, deployment: LedDeployment) -> None:
        """Keep what the next service needs; where the disk is full, once there is room."""
        if deployment.initialized is not None and not deployment.is_gone:
            await self._note(deployment.deployment_id, note_of(deployment))

    async def _note(self, deployment_id: str, note: bytes | None) -> None:
        try:
            await self.hosts.keep(deployment_id, note)
        except PlexError as error:  # another service leads: this one ends by itself
            log.warning("what is led is not kept", deployment=deployment_id, error=error)

    def _bound(self, seeding: LedDeployment, *, most: int) -> None:
        """Ask for no more instances than fit into the time of training, by the seeding window.

        Dedicated ones are there anyway; what a deployment gets before others, it keeps asking for.
        """
        served = self._deployments.get(seeding.seeds)
        if served is None or served.initialized is None or self.spot is None:
            return
        wanted = served.wants(SPOT.name)
        worth = max(wanted.least, most - len(served.addresses))
        if wanted.most:
            self.spot.post(replace(wanted, most=max(1, min(wanted.most, worth))))

    def adopt(
        self,
        deployment_id: str,
        *,
        fence: common_pb2.Fence,
        wpg_id: str,
        addresses: Sequence[str],
    ) -> bool:
        """Lead a deployment of an earlier service, if that wrote down how it is initialised.

        Its manager is told of it as a successor is. Its instances are those at `addresses`: the
        ones written down may be of a move that is not over.
        """
        note = self.hosts.notes.get(deployment_id)
        if note is None:
            return False
        kept, up = msgspec.json.decode(note, type=KeptDeployment), self.hosts.nodes()
        there = [self._crew.link(one, kept.number) for one in kept.nodes if one in up]
        link = there[0] if there else self._crew.chosen(self.hosts.places(deployment_id))
        link.peer = there[1] if len(there) > 1 else link.peer
        deployment = LedDeployment(deployment_id, kept.job_id, link, self._clock, fence=fence)
        deployment.initialized = worker_pb2.ExecuteRequest.FromString(kept.initialized)
        deployment.initialized.wpg_id, deployment.addresses = wpg_id, list(addresses)
        if kept.pulled is not None:
            deployment.pulled = worker_pb2.ExecuteRequest.FromString(kept.pulled)
            deployment.versions = {VersionId.of(deployment.pulled.published)}
        self._deployments[deployment_id] = deployment
        self._want(deployment)
        self._crew.hand_over(deployment, link)
        return True

    def pulled(self, deployment_id: str, operation_id: bytes) -> int | None:
        """Return the version that a pull loaded, unless another was loaded since."""
        deployment = self._deployments.get(deployment_id)
        last = None if deployment is None else deployment.pulled
        if last is None or last.operation.operation_id != operation_id:
            return None
        return last.published.version

    async def cancel(self, request: worker_pb2.CancelRequest) -> None:
        """End a generate early; where its manager is away, at the successor.

        Raises:
            PlexError: `stale_fence`.
        """
        found = [d for d in self._deployments.values() if d.wpg_id == request.wpg_id]
        for deployment in found:
            while not deployment.is_gone:
                try:
                    await cancel(deployment.link, request)
                    break
                except PlexError as error:
                    if error.code != ErrorCode.UNAVAILABLE:
                        raise
                    await self._clock.sleep(RETRY_US)

    async def release(self, deployment_id: str, operation_id: bytes) -> None:
        """Drop the record of an acknowledged operation.

        Raises:
            PlexError: the manager is not there; the record goes when others need its room.
        """
        deployment = self._deployments.get(deployment_id)
        if deployment is not None:
            await deployment.cancel(operation_id)

    async def replace(self, deployment_id: str, *, index: int, address: str) -> None:
        """Let a new instance take the place of one that was lost.

        Raises:
            PlexError: `not_found`; `unavailable` when the new one does not answer.
        """
        deployment = self._deployment(deployment_id)
        deployment.addresses[index] = address
        await self.keep(deployment)
        await deployment.insist(address, replaces=index)

    async def locate(self, source: statemanager_pb2.PublishedVersion) -> None:
        """Have those that serve a version read it from these holders; none: it is lost for good."""
        version = VersionId.of(source)
        for deployment in list(self._deployments.values()):
            pulled = deployment.pulled
            is_served = pulled is not None and VersionId.of(pulled.published) == version
            if pulled is None or not is_served or pulled.published == source:
                continue
            pulled.published.CopyFrom(source)
            await self.keep(deployment)
            if self._group is not None:
                self._group.create_task(self._tell_located(deployment, source))

    async def _tell_located(
        self, deployment: LedDeployment, source: statemanager_pb2.PublishedVersion
    ) -> None:
        try:
            await deployment.insist("", located=source)
        except PlexError as error:  # a successor is told, as it is of all the rest
            log.warning("manager not told of a version", wpg=deployment.wpg_id, error=error)

    async def move(
        self, deployment_id: str, *, fence: common_pb2.Fence, to: rollout_pb2.InstancesMove
    ) -> rollout_pb2.MoveInstancesReply:
        """Have all instances of a deployment sleep or wake, by the successor if a manager dies.

        Raises:
            PlexError: `not_found`; what an instance refused; `unavailable` if no successor comes.
        """
        deployment = self._deployment(deployment_id)
        deployment.fence.CopyFrom(fence)
        return await deployment.move(to)

    async def forget(self, deployment_id: str) -> None:
        """End a deployment: drop its records and connections. Safe to repeat."""
        self._telling.pop(deployment_id, None)
        deployment = self._deployments.pop(deployment_id, None)
        if deployment is None:
            return
        deployment.is_gone = True
        await self._note(deployment_id, None)
        for pool in self._pools:
            pool.post(Wanted(deployment_id=DeploymentId(deployment_id), most=0))
        if not await self._is_forgotten(deployment) and self._group is not None:
            self._group.create_task(self._forget_again(deployment))

    async def _is_forgotten(self, deployment: LedDeployment) -> bool:
        try:
            await deployment.cancel()
        except PlexError as error:
            log.warning("rollout deployment not forgotten", wpg=deployment.wpg_id, error=error)
            return error.code not in AWAY
        return True

    async def _forget_again(self, deployment: LedDeployment) -> None:
        """Have a deployment forgotten by a manager that was away; a successor never knew it."""
        incarnation = deployment.link.incarnation
        while deployment.link.incarnation == incarnation:
            await self._clock.sleep(LOOK_US)
            if await self._is_forgotten(deployment):
                return

    # ---- what the scheduler is told

    def report_to(self, given_up: GivenUp) -> None:
        """Say from now on which instances do not come back by themselves."""
        self._report = given_up

    def report_left_to(self, left: Left) -> None:
        """Say from now on which instances sleep because a generate does without them."""
        self._report_left = left

    def report_turns_to(self, turned: Turned) -> None:
        """Say from now on what turns took of instances."""
        self._report_turns = turned

    def address_of(self, deployment_id: str) -> str:
        """Return where a deployment's tokens are streamed from; empty before it is initialised."""
        deployment = self._deployments.get(deployment_id)
        return "" if deployment is None else deployment.link.address

    def versions_in_use(self) -> set[VersionId]:
        """Return the versions that instances serve or load, or would after a restart."""
        return {one for held in self._deployments.values() for one in held.versions}

    async def progress(self, deployment_id: str, operation_id: bytes) -> int:
        """Return a count that grows while an operation gets on: tokens recorded, weights loaded.

        Raises:
            AioRpcError: its manager did not say.
        """
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            return 0
        request = rollout_pb2.InspectRequest(operation_id=operation_id)
        found = await deployment.link.manager.Inspect(request, timeout=CALL_S)
        return found.progress

    async def instances(self) -> list[service_pb2.InstanceView]:
        """Return every instance and slot; `device` of a dedicated one is its address.

        Those of a manager that is not there are left out until its successor has them.
        """
        found: list[service_pb2.InstanceView] = []
        for link in self._crew.links():
            try:
                request = rollout_pb2.InspectRequest()
                found += (await link.manager.Inspect(request, timeout=CALL_S)).instances
            except grpc.aio.AioRpcError as error:
                log.warning("manager does not answer", address=link.address, error=error)
        for pool in self._pools:
            for view in found:
                pool.describe(view.device, view)
            found += pool.without_instance()
        return found

    # ---- what managers tell, and are told again

    def hear(self, news: rollout_pb2.ManagerNews) -> None:
        """Pass on what became of an instance, or what turns took."""
        gone, left, turns = news.gone, news.left, news.turns
        if news.HasField("gone") and not gone.is_dedicated:
            for pool in self._pools:
                pool.gone(gone.address, because=gone.because)
        elif news.HasField("gone") and self._report is not None:
            self._report(gone.wpg_id, gone.address, gone.because)
        if news.HasField("left") and self._report_left is not None:
            self._report_left(left.wpg_id, left.address, left.operation_id)
        if news.HasField("turns") and self._report_turns is not None:
            self._report_turns(turns.wpg_id, turns.device_us)

    async def restore(self, deployment: LedDeployment, *, incarnation: int) -> None:
        """Initialise a deployment again, until that is done or there is another successor.

        An instance that keeps it from that for `SILENT_US` does not come back by itself.
        """
        begun_us, reported, told = self._clock.monotonic_us(), set[str](), ""
        while not deployment.is_gone and deployment.link.incarnation == incarnation:
            try:
                reply = await deployment.link.worker.Execute(restoring(deployment))
            except grpc.aio.AioRpcError as error:
                because = error_from(error)
            else:
                if not reply.result.HasField("error"):
                    async with asyncio.TaskGroup() as group:
                        for address, kind in list(deployment.others.items()):
                            group.create_task(self._restore_other(deployment, address, kind=kind))
                    deployment.told.clear()
                    deployment.led_by = incarnation
                    await deployment.tell_again()
                    return
                because = from_wire(reply.result.error)
                address = str(because.facts.get("instance", ""))
                is_late = self._clock.monotonic_us() - begun_us > SILENT_US
                is_known = address in deployment.addresses and address not in reported
                if is_late and is_known and self._report is not None:
                    reported.add(address)
                    self._report(deployment.wpg_id, address, because.message)
            if because.message != told:
                told = because.message
                log.warning("rollout deployment not restored yet", error=because)
            await self._clock.sleep(RETRY_US)

    async def _restore_other(self, deployment: LedDeployment, address: str, *, kind: str) -> None:
        try:
            await deployment.insist(address, joins_as=kind)
        except PlexError as error:
            for pool in self._pools:
                pool.gone(address, because=error.message)

    def _deployment(self, deployment_id: str) -> LedDeployment:
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            raise no_deployment(deployment_id)
        return deployment

"""Rollout managers of a cluster, as the scheduler reaches them: one process for all, or several.

Theory of operation. A job's deployments are all with one manager, that which had the fewest jobs
when the first of them came. What a manager would need after a restart is kept here: how each
deployment was initialised, its instances, and the version they serve. Every manager is followed: it
sends a beat every second. One that sends none for `SILENT_LOOKS` looks is killed, and whoever
started it starts a successor at the same address. A new incarnation is told of each deployment
again; orders that were under way are repeated until it takes them, and it goes on from the token
records of the one before. The pools of spot devices and of lent engines are here, because all
managers share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import msgspec

from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    service_pb2,
    worker_pb2,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, VersionId
from plexsvc.log import Log
from plexsvc.rollout.core.instances import SPOT
from plexsvc.rollout.core.pool import Generating, Wanted
from plexsvc.rollout.links import (
    AWAY,
    CALL_S,
    KeptDeployment,
    LedDeployment,
    ManagerLink,
    cancel,
    keep,
    kept_at,
    restoring,
    wanted_of,
)
from plexsvc.rollout.pools import Pools
from plexsvc.rpc.channels import open_channel
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

SILENT_LOOKS: Final = 15
"""Looks in a row that find no beat before a manager is killed."""

START_LOOKS: Final = 120
"""The same before its first beat: a process that starts on a busy machine is not silent."""

RETRY_US: Final = 100_000
"""Pause before a call to a manager that is not there, or not told yet, is made again."""

TRIES: Final = 600
"""Tries of a change of instances while their manager is away: about a minute of pauses."""

GONE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)
"""What a call ends with when the process behind it dies."""


class Managers(Pools):
    """All managers of a cluster. `run` must be running."""

    def __init__(
        self,
        managers: Sequence[tuple[str, Callable[[], None]]],
        *,
        clock: Clock,
        keys: ClusterKeys,
        directory: Path,
    ) -> None:
        """Lead the managers at these addresses; each is killed by the function beside.

        `directory` keeps the names of spot devices and engines that operators closed.

        Raises:
            PlexError: `bad_request` for a file there that is no such list.
        """
        self._links = [
            ManagerLink(address, open_channel(address, keys), kill) for address, kill in managers
        ]
        self._deployments: dict[str, LedDeployment] = {}
        self._report: GivenUp | None = None
        self._report_left: Left | None = None
        self._report_turns: Turned | None = None
        self._group: asyncio.TaskGroup | None = None
        self._telling: set[str] = set()
        super().__init__(clock=clock, directory=directory, fleet_of=self._deployments.get)

    async def run(self) -> None:
        """Follow every manager until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self.lent.run())
                for link in self._links:
                    self._group.create_task(self._follow(link))
                while True:
                    await self._clock.sleep(LOOK_US)
                    for link in self._links:
                        _look(link)
                    for deployment in self._deployments.values():
                        if deployment.has_untold and deployment.link.is_up:
                            self._group.create_task(self._tell_again(deployment))
        finally:
            for link in self._links:
                await link.channel.close()

    # ---- what the scheduler orders

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation of a rollout deployment, with the successor if its manager dies.

        Raises:
            PlexError: `not_found` for a deployment that is gone.
        """
        operation, body = request.operation, request.operation.WhichOneof("body")
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is None and body == "initialize":
            deployment = self._place(operation)
        if deployment is None:
            raise _gone(operation.deployment_id)
        if body in {"initialize", "pull"}:
            deployment.fence.CopyFrom(request.fence)
        if body == "pull":
            deployment.versions.add(VersionId.of(request.published))
        if body == "generate":
            self._generates(deployment, 1)
        try:
            reply = await self._insist(deployment, request)
        finally:
            if body == "generate":
                self._generates(deployment, -1)
        if not reply.result.HasField("error"):
            self._note(deployment, request, reply, body)
        return reply

    def adopt(self, deployment_id: str, *, fence: common_pb2.Fence) -> bool:
        """Lead a deployment of an earlier service, if that wrote down how it is initialised.

        The managers died with that service. Theirs are told of it as a successor is.
        """
        path = kept_at(self._directory, deployment_id)
        if not path.exists():
            return False
        kept = msgspec.json.decode(path.read_bytes(), type=KeptDeployment)
        link = self._links[kept.link % len(self._links)]
        link.jobs.setdefault(kept.job_id, set()).add(deployment_id)
        deployment = LedDeployment(deployment_id, kept.job_id, link, fence=fence)
        deployment.initialized = worker_pb2.ExecuteRequest.FromString(kept.initialized)
        deployment.addresses = kept.addresses
        if kept.pulled is not None:
            deployment.pulled = worker_pb2.ExecuteRequest.FromString(kept.pulled)
            deployment.versions = {VersionId.of(deployment.pulled.published)}
        self._deployments[deployment_id] = deployment
        self._want(deployment, deployment.initialized)
        if link.incarnation and self._group is not None:  # else its first beat has it told
            self._group.create_task(self._restore(deployment, incarnation=link.incarnation))
        return True

    async def cancel(self, request: worker_pb2.CancelRequest) -> None:
        """End a generate early; where its manager is away, at the successor.

        Raises:
            PlexError: `stale_fence`.
        """
        found = [d for d in self._deployments.values() if d.wpg_id == request.wpg_id]
        for deployment in found:
            while self._deployments.get(deployment.deployment_id) is deployment:
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
            request = worker_pb2.CancelRequest(
                operation_id=operation_id, wpg_id=deployment.wpg_id, fence=deployment.fence
            )
            await cancel(deployment.link, request)

    async def replace(self, deployment_id: str, *, index: int, address: str) -> None:
        """Let a new instance take the place of one that was lost.

        Raises:
            PlexError: `not_found`; `unavailable` when the new one does not answer.
        """
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            raise _gone(deployment_id)
        deployment.addresses[index] = address
        self._keep(deployment)
        await self._change(deployment, address, replaces=index)

    async def move(
        self, deployment_id: str, *, fence: common_pb2.Fence, to: rollout_pb2.InstancesMove
    ) -> rollout_pb2.MoveInstancesReply:
        """Have all instances of a deployment sleep or wake, by the successor if a manager dies.

        Raises:
            PlexError: `not_found`; what an instance refused; `unavailable` after `TRIES`.
        """
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            raise _gone(deployment_id)
        deployment.fence.CopyFrom(fence)
        request = rollout_pb2.MoveInstancesRequest(
            fence=fence, wpg_id=deployment.wpg_id, deployment_id=deployment_id, to=to
        )
        for last in range(TRIES):
            try:
                return await deployment.link.manager.MoveInstances(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE or last + 1 == TRIES:
                    raise error_from(error) from error
            await self._clock.sleep(RETRY_US)
        raise AssertionError(TRIES)

    async def forget(self, deployment_id: str) -> None:
        """End a deployment: drop its records and connections. Safe to repeat."""
        kept_at(self._directory, deployment_id).unlink(missing_ok=True)
        deployment = self._deployments.pop(deployment_id, None)
        if deployment is None:
            return
        jobs = deployment.link.jobs
        jobs[deployment.job_id].discard(deployment_id)
        if not jobs[deployment.job_id]:
            del jobs[deployment.job_id]
        for pool in self._pools:
            pool.post(Wanted(deployment_id=DeploymentId(deployment_id), most=0))
        if not await self._is_forgotten(deployment) and self._group is not None:
            self._group.create_task(self._forget_again(deployment))

    async def _is_forgotten(self, deployment: LedDeployment) -> bool:
        request = worker_pb2.CancelRequest(wpg_id=deployment.wpg_id, fence=deployment.fence)
        try:
            await cancel(deployment.link, request)
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
        for link in self._links:
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

    # ---- managers that come and go

    def _place(self, operation: operations_pb2.Operation) -> LedDeployment:
        """Return a new deployment, with the manager of its job or the one with the fewest jobs."""
        job_id, deployment_id = operation.job_id, operation.deployment_id
        theirs = (link for link in self._links if job_id in link.jobs)
        link = next(theirs, None) or min(self._links, key=lambda link: len(link.jobs))
        link.jobs.setdefault(job_id, set()).add(deployment_id)
        made = self._deployments[deployment_id] = LedDeployment(deployment_id, job_id, link)
        return made

    async def _insist(
        self, deployment: LedDeployment, request: worker_pb2.ExecuteRequest
    ) -> worker_pb2.ExecuteReply:
        """Return the answer to an order, given again while its manager is away or not told yet."""
        while True:
            try:
                reply = await deployment.link.worker.Execute(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    raise error_from(error) from error
            else:
                if not _is_early(reply.result):
                    return reply
            if self._deployments.get(deployment.deployment_id) is not deployment:
                raise _gone(deployment.deployment_id)
            await self._clock.sleep(RETRY_US)

    def _generates(self, deployment: LedDeployment, more: int) -> None:
        """Count the generates that run, and tell the pools of the first and the last."""
        deployment.generates += more
        told = Generating(
            deployment_id=DeploymentId(deployment.deployment_id),
            is_generating=deployment.generates > 0,
        )
        for pool in self._pools:
            pool.post(told)

    def _note(
        self,
        deployment: LedDeployment,
        request: worker_pb2.ExecuteRequest,
        reply: worker_pb2.ExecuteReply,
        body: str | None,
    ) -> None:
        """Keep what a successor must be told."""
        if body == "initialize":
            deployment.initialized = request
            deployment.addresses = list(request.instance_addresses)
            self._keep(deployment)
            self._want(deployment, request)
        elif body == "seed" and "most_instances" in reply.result.metrics:
            self._bound(deployment, most=int(reply.result.metrics["most_instances"]))
        elif body == "pull":
            deployment.pulled = request
            deployment.versions = {VersionId.of(request.published)}
            self._keep(deployment)

    def _want(self, deployment: LedDeployment, initialized: worker_pb2.ExecuteRequest) -> None:
        """Ask the pools for the instances that a deployment wants of each kind."""
        for pool in self._pools:
            pool.post(wanted_of(initialized.deployment, deployment, kind=pool.kind.name))

    def _keep(self, deployment: LedDeployment) -> None:
        if deployment.initialized is not None:
            keep(deployment, self._directory, link=self._links.index(deployment.link))

    def _bound(self, seeding: LedDeployment, *, most: int) -> None:
        """Ask for no more instances than fit into the time of training, by the seeding window.

        Dedicated ones are there anyway; what a deployment gets before others, it keeps asking for.
        """
        served = self._deployments.get(seeding.seeds)
        if served is None or served.initialized is None or self.spot is None:
            return
        wanted = wanted_of(served.initialized.deployment, served, kind=SPOT.name)
        worth = max(wanted.least, most - len(served.addresses))
        if wanted.most:
            self.spot.post(replace(wanted, most=max(1, min(wanted.most, worth))))

    async def _follow(self, link: ManagerLink) -> None:
        """Hear a manager, and each successor, until cancelled."""
        while True:
            try:
                async for news in link.manager.Follow(rollout_pb2.FollowRequest()):
                    link.has_beaten = link.is_up = True
                    if news.incarnation != link.incarnation:
                        self._begin(link, incarnation=news.incarnation)
                    if news.HasField("gone"):
                        self._lose(news.gone)
                    if news.HasField("left") and self._report_left is not None:
                        left = news.left
                        self._report_left(left.wpg_id, left.address, left.operation_id)
                    if news.HasField("turns") and self._report_turns is not None:
                        self._report_turns(news.turns.wpg_id, news.turns.device_us)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    log.error("manager cannot be followed", error=error)
            await self._clock.sleep(RETRY_US)

    def _begin(self, link: ManagerLink, *, incarnation: int) -> None:
        """Tell a new process of every deployment that it has."""
        assert self._group is not None
        link.incarnation = incarnation
        held = [one for one in self._deployments.values() if one.link is link and one.initialized]
        if held:
            log.warning("rollout manager started again", deployments=len(held))
        for deployment in held:
            self._group.create_task(self._restore(deployment, incarnation=incarnation))

    async def _restore(self, deployment: LedDeployment, *, incarnation: int) -> None:
        """Initialise a deployment again, until that is done or there is another successor."""
        while (
            self._deployments.get(deployment.deployment_id) is deployment
            and deployment.link.incarnation == incarnation
        ):
            try:
                reply = await deployment.link.worker.Execute(restoring(deployment))
            except grpc.aio.AioRpcError as error:
                log.warning("rollout deployment not restored yet", error=error)
            else:
                if not reply.result.HasField("error"):
                    async with asyncio.TaskGroup() as group:
                        for address, kind in list(deployment.others.items()):
                            group.create_task(self._restore_other(deployment, address, kind=kind))
                    deployment.told.clear()
                    await deployment.tell_again()
                    return
                because = from_wire(reply.result.error)
                log.warning("rollout deployment not restored yet", error=because)
            await self._clock.sleep(RETRY_US)

    async def _tell_again(self, deployment: LedDeployment) -> None:
        """Tell a manager what it was not told while it was away, one task at a time."""
        if deployment.deployment_id not in self._telling:
            self._telling.add(deployment.deployment_id)
            try:
                await deployment.tell_again()
            finally:
                self._telling.discard(deployment.deployment_id)

    async def _restore_other(self, deployment: LedDeployment, address: str, *, kind: str) -> None:
        try:
            await self._change(deployment, address, joins_as=kind)
        except PlexError as error:
            for pool in self._pools:
                pool.gone(address, because=error.message)

    async def _change(
        self, deployment: LedDeployment, address: str, **change: str | int | bool
    ) -> None:
        """Tell a manager of an instance until it has it, or a successor is told of all of them.

        Raises:
            PlexError: what it refused; `unavailable` after `TRIES`.
        """
        incarnation = deployment.link.incarnation
        for last in range(TRIES):
            try:
                await deployment.change(address, **change)
            except PlexError as error:
                if error.code not in AWAY or last + 1 == TRIES:
                    raise
            else:
                return
            await self._clock.sleep(RETRY_US)
            if deployment.link.incarnation != incarnation:
                return

    def _lose(self, gone: rollout_pb2.InstanceGone) -> None:
        """Have a dedicated instance that was given up replaced; note that another is gone."""
        if not gone.is_dedicated:
            for pool in self._pools:
                pool.gone(gone.address, because=gone.because)
        elif self._report is not None:
            self._report(gone.wpg_id, gone.address, gone.because)


def _look(link: ManagerLink) -> None:
    """Kill a manager that was silent for too long."""
    link.silent_looks = 0 if link.has_beaten else link.silent_looks + 1
    link.has_beaten = False
    if link.silent_looks >= (SILENT_LOOKS if link.is_up else START_LOOKS):
        log.error("rollout manager hangs and is killed", address=link.address)
        link.is_up, link.silent_looks = False, 0
        link.kill()


def _is_early(result: operations_pb2.OperationResult) -> bool:
    """Whether an order came before its manager was told of the deployment, or as it stopped."""
    is_refused = result.state == operations_pb2.OPERATION_STATE_REFUSED
    return is_refused and result.error.code == ErrorCode.UNAVAILABLE.value


def _gone(deployment_id: str) -> PlexError:
    return PlexError(ErrorCode.NOT_FOUND, f"rollout deployment {deployment_id} is gone")

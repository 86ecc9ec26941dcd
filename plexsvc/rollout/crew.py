"""Managers of all nodes: which leads a deployment, and who succeeds one that ends.

Theory of operation. Every manager is followed: it sends a beat every second. One that sends none
for `SILENT_LOOKS` looks is killed. Whatever it dies of, its node's agent starts a successor; where
the node is lost, a manager of another node is the successor. A new incarnation is told of each
deployment again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import grpc.aio

from plexclient.wire.v1 import rollout_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.links import (
    CALL_S,
    GONE,
    RETRY_US,
    LedDeployment,
    ManagerLink,
    ManagerNodes,
)
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

MAX_LOST: Final = 16
PAUSE_US: Final = 1_000_000
"""After a manager that did not come up, before the next is started."""

_TOLD: Final = ("record_bytes", "balance_us", "stall_us", "cuts_at")
"""Keys of the configuration that each manager is told."""


class DeploymentLeader(Protocol):
    """Who leads the deployments that managers have."""

    hosts: ManagerNodes

    async def keep(self, deployment: LedDeployment) -> None:
        """Keep what the next service needs of a deployment."""

    async def restore(self, deployment: LedDeployment, *, incarnation: int) -> None:
        """Have a new process initialise a deployment again."""

    def hear(self, news: rollout_pb2.ManagerNews) -> None:
        """Take in what a manager says."""


class ManagerCrew:
    """All managers of a cluster, on behalf of who leads the deployments."""

    def __init__(
        self,
        config: RolloutConfig,
        leader: DeploymentLeader,
        deployments: Mapping[str, LedDeployment],
        *,
        clock: Clock,
        keys: ClusterKeys,
    ) -> None:
        self._leader, self._deployments, self._clock, self._keys = leader, deployments, clock, keys
        self._per_node = config.managers
        self._config_json = json.dumps({key: getattr(config, key) for key in _TOLD})
        self._links: dict[tuple[str, int], ManagerLink] = {}
        self._lost: list[ManagerLink] = []
        """Of nodes that were lost, the last `MAX_LOST`: calls may not have ended yet."""
        self._following: dict[ManagerLink, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def look(self, group: asyncio.TaskGroup) -> None:
        """Look at every manager once; follow each in a group of tasks from now on."""
        self._group = group
        for link in self.links():
            self._look(link, group)
        while len(self._lost) > MAX_LOST:
            await self._lost.pop(0).close()

    async def close(self) -> None:
        """End all connections."""
        for link in (*self._links.values(), *self._lost):
            await link.close()

    def links(self) -> list[ManagerLink]:
        """Return the managers of nodes that are up."""
        return list(self._links.values())

    def chosen(self, instances: Sequence[str]) -> ManagerLink:
        """Return the manager with fewest jobs of the node that has most of these instances.

        Of several such nodes it is the one whose managers have the fewest jobs.

        Raises:
            PlexError: `node_lost` when no node is up.
        """
        led = Counter(link for _, link in {(d.job_id, d.link) for d in self._deployments.values()})
        jobs = Counter[str]()
        for link, count in led.items():
            jobs[link.node_id] += count
        nodes = self._leader.hosts.nodes()
        takes = [node_id for node_id, is_open in nodes.items() if is_open] or list(nodes)
        if not takes:
            raise PlexError(ErrorCode.NODE_LOST, "no node is up that could have a rollout manager")
        node_id = min(takes, key=lambda one: (-instances.count(one), jobs[one], one))
        numbers = (self.link(node_id, number) for number in range(self._per_node))
        return min(numbers, key=led.__getitem__)

    def link(self, node_id: str, number: int) -> ManagerLink:
        """Return the link to a manager, which is started if need be."""
        link = self._links.get((node_id, number))
        if link is None:
            link = self._links[node_id, number] = ManagerLink(node_id, number, self._keys)
        if link not in self._following and self._group is not None:
            self._following[link] = self._group.create_task(self._follow(link, self._group))
        return link

    def hand_over(self, deployment: LedDeployment, link: ManagerLink) -> None:
        """Have a manager told of a deployment as a successor is."""
        deployment.link = link
        is_told_now = link.incarnation and deployment.initialized  # else by its first beat
        if is_told_now and self._group is not None:
            self._group.create_task(self._leader.restore(deployment, incarnation=link.incarnation))

    def _look(self, link: ManagerLink, group: asyncio.TaskGroup) -> None:
        """Follow a manager, and kill one that hangs; where its node is lost, others take over."""
        nodes = self._leader.hosts.nodes()
        if link.node_id in nodes:
            self.link(link.node_id, link.number)
            if link.is_silent():
                group.create_task(self._leader.hosts.kill(link.node_id, link.number))
            elif link.is_up:
                self._arrange(link, group)
        elif nodes:
            if (following := self._following.pop(link, None)) is not None:
                following.cancel()
            self._lost.append(self._links.pop((link.node_id, link.number)))
            self._move_off(link, group)

    def _arrange(self, link: ManagerLink, group: asyncio.TaskGroup) -> None:
        """Say what a manager leads and who has its copies, whenever that has changed."""
        leads = [one for one in self._deployments.values() if one.link is link]
        peer = self._peer(link) if leads else None
        if peer is not link.peer:
            link.peer = peer
            for deployment in leads:
                group.create_task(self._leader.keep(deployment))
        led = {one.deployment_id for one in leads}
        request = rollout_pb2.ArrangeRequest(
            leads=sorted(led), others=sorted(self._deployments.keys() - led)
        )
        request.fence.scheduler_epoch = self._leader.hosts.epoch
        if peer is not None and peer.is_up:
            request.copies_to, request.number = peer.address, peer.incarnation
        if request != link.told:
            link.told = request
            group.create_task(self._tell_arranged(link, request))

    async def _tell_arranged(self, link: ManagerLink, request: rollout_pb2.ArrangeRequest) -> None:
        try:
            await link.manager.Arrange(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            log.warning("manager not told what it leads", node=link.node_id, error=error)
            link.told = rollout_pb2.ArrangeRequest()

    def _peer(self, link: ManagerLink) -> ManagerLink | None:
        """Return who has copies of a manager's records: as before, else of the next node."""
        nodes = dict(self._leader.hosts.nodes())
        nodes.pop(link.node_id, None)
        if link.peer is not None and link.peer.node_id in nodes:
            return self.link(link.peer.node_id, link.number)
        takes = sorted(one for one, is_open in nodes.items() if is_open) or sorted(nodes)
        node_id = next((one for one in takes if one > link.node_id), next(iter(takes), None))
        return None if node_id is None else self.link(node_id, link.number)

    def _move_off(self, lost: ManagerLink, group: asyncio.TaskGroup) -> None:
        """Have managers of other nodes go on with what a lost one led, all of a job with one.

        That is the one with copies of its records, while its node is up.
        """
        has_copies = lost.peer is not None and lost.peer.node_id in self._leader.hosts.nodes()
        led = [one for one in self._deployments.values() if one.link is lost]
        heirs: dict[str, ManagerLink] = {}
        for deployment in led:
            if deployment.job_id not in heirs:
                places = self._leader.hosts.places(deployment.deployment_id)
                heir = lost.peer if has_copies and lost.peer else self.chosen(places)
                heirs[deployment.job_id] = heir
            heir = heirs[deployment.job_id]
            log.warning(
                "rollout deployment led elsewhere",
                deployment=deployment.deployment_id,
                lost=lost.node_id,
                node=heir.node_id,
            )
            self.hand_over(deployment, heir)
            group.create_task(self._leader.keep(deployment))

    async def _follow(self, link: ManagerLink, group: asyncio.TaskGroup) -> None:
        """Hear a manager, and each successor on its node, until cancelled."""
        while True:
            link.starts = True
            try:
                address = await self._leader.hosts.start(
                    link.node_id, link.number, config_json=self._config_json
                )
            except PlexError as error:
                log.warning("no rollout manager", node=link.node_id, because=error.message)
                await self._clock.sleep(PAUSE_US)
                continue
            link.serves_at(address)
            await link.close(but=2)  # the one before may have calls whose end is not noticed yet
            try:
                async for news in link.manager.Follow(rollout_pb2.FollowRequest()):
                    link.has_beaten = link.is_up = True
                    if news.incarnation != link.incarnation:
                        self._begin(link, group, incarnation=news.incarnation)
                    self._leader.hear(news)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    log.error("manager cannot be followed", error=error)
            await self._clock.sleep(RETRY_US)

    def _begin(self, link: ManagerLink, group: asyncio.TaskGroup, *, incarnation: int) -> None:
        """Tell a new process of every deployment that it has."""
        link.incarnation = incarnation
        link.told = rollout_pb2.ArrangeRequest()
        held = [one for one in self._deployments.values() if one.link is link and one.initialized]
        if held:
            log.warning("rollout manager started again", deployments=len(held))
        for deployment in held:
            group.create_task(self._leader.restore(deployment, incarnation=incarnation))

"""Members of a cluster: what the launcher says of hosts, told to the scheduler.

A node whose agent serves is taken in. One whose host has been told to leave is drained: nothing
further is placed there, and what lives there moves. One whose host is gone is forgotten once its
lease has run out: the lease alone says what is dead. One that asks gets a certificate for its key,
and another one before that ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import grpc.aio

from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node.launchers.launcher import Host, Launcher
from plexsvc.rpc import certificates
from plexsvc.scheduler.api.operators import take_in
from plexsvc.scheduler.core.events import NodeCordoned
from plexsvc.scheduler.live import LiveScheduler

log = Log(__name__)

LOOK_S: Final = 1.0
"""How often hosts and nodes are compared when nothing is told."""


async def follow(launcher: Launcher, scheduler: LiveScheduler) -> None:
    """Compare hosts and nodes, and act on what differs, until cancelled."""
    at_work: dict[NodeId, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as tasks:
        while True:
            launcher.changed.clear()
            scheduler.nodes.absent = {
                node_id: host.problem or "its agent starts"
                for node_id, host in launcher.hosts.items()
                if not host.address and not host.is_gone
            }
            for node_id, host in launcher.hosts.items():
                if node_id not in at_work or at_work[node_id].done():
                    at_work[node_id] = tasks.create_task(_settle(scheduler, host, launcher))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await launcher.changed.wait()


async def renew_certificates(scheduler: LiveScheduler, *, clock: Clock) -> None:
    """Give nodes that are up a new certificate before theirs ends, until cancelled."""
    while True:
        await clock.sleep(round(LOOK_S * 1e6))
        for link in [link for link in scheduler.nodes.links if link.is_up]:
            try:
                serial = link.renewed.reply.serial if link.renewed else ""
                fresh = await scheduler.members.renewed(serial)
                if fresh is not None:
                    await link.renew(certificate=fresh.certificate)
                    log.info("certificate renewed", node_id=link.node_id, serial=fresh.serial)
            except (grpc.aio.AioRpcError, PlexError) as error:
                log.warning("certificate not renewed", node_id=link.node_id, error=error)


async def _settle(scheduler: LiveScheduler, host: Host, launcher: Launcher) -> None:
    """Have the scheduler's links to a node be as its host is, and the host have its certificate."""
    links = [link for link in scheduler.nodes.links if link.node_id == host.node_id]
    is_shut_out = scheduler.members.is_shut_out(host.node_id)
    for link in links:
        link.is_gone = is_shut_out or host.is_gone or link.target != host.address != ""
    if is_shut_out:
        return
    try:
        if host.request:
            scheduler.check_open()
            if certificates.requested(host.request)[0] != host.node_id:
                raise bad_request(f"the host of node {host.node_id} asks for another's certificate")
            given = await scheduler.members.issue(host.request)
            launcher.admit(host.node_id, given.certificate)
        if host.address and not links:
            await take_in(scheduler, host.address)
        is_closed = scheduler.cluster.cordoned.get(host.node_id)
        if host.is_leaving and not is_closed and scheduler.nodes.is_up(host.node_id):
            log.warning("node is told to leave, and drained", node_id=host.node_id)
            scheduler.check_open()
            await scheduler.post(NodeCordoned(node_id=host.node_id, is_drained=True)).decision
    except PlexError as error:
        log.warning("node not settled; trying again", node_id=host.node_id, error=error)

"""Adoption of what a former scheduler left running.

Theory of operation. The core is the former one's, so it counts on nodes, ranks and orders under
way. Agents say what runs; inventory beats journal. Ranks that are there are connected again. One
that is missing is told to the core as ended, and its deployment fails with that cause. Then every
order whose outcome the core awaits is given once more, under its own number: agents, state managers
and ranks answer what they have done from their records. An operation runs, or is answered, when its
client has sent it again (`run`).

Rollout managers are told of each deployment as the successor of one is, with the instances that the
core counts on, and go on from its token records. Instances say
themselves which of them sleep. One that is missing is spawned again, as one that is lost under a
running service: `life/instances.py`.

A relocation goes on where it was. The copy that its new ranks read is made again, or found. What
else state managers have copied, and no record of the store names, is released: the copies of
saves, exports and digests that were cut short, and of relocations that were over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator
from typing import Final

import grpc.aio

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, VersionId, WpgId
from plexsvc.log import Log
from plexsvc.scheduler.core.actions import Action, KeepState
from plexsvc.scheduler.core.events import Event, JobEndRequested, NodeLost, ProcExited, SpawnFailed
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import (
    WRITING_KINDS,
    DeploymentState,
    Fault,
    JobState,
    RelocationStage,
    WpgState,
)
from plexsvc.scheduler.faults import fault_of_call
from plexsvc.scheduler.handler import Handlers, close_with
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.orders import carry, managed, spawn
from plexsvc.scheduler.orders.nodes import SIGKILL, NodeLinks
from plexsvc.scheduler.orders.ranks import Rank
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

RESTARTED: Final = Fault(
    code=ErrorCode.UNAVAILABLE, message="the service was started again meanwhile; try again"
)
NOWHERE: Final = "unix:/dev/null"
"""Where an instance answers that another takes the place of."""

NOT_JOINED: Final = "it did not join the service that took over"
NOT_ADOPTED: Final = (
    "the service was started again, and nothing is kept of how the job's rollout was initialised"
)


def remember(nodes: NodeLinks, view: ClusterView) -> None:
    """Have links go on with the nodes and processes that a thawed core counts on."""
    nodes.remembered.up.update(view.nodes)
    nodes.remembered.procs.update(
        (f"{wpg.wpg_id}/{rank}", wpg.incarnation_of(rank))
        for wpg in view.wpgs.values()
        if wpg.state in {WpgState.SPAWNING, WpgState.READY}
        for rank in range(len(wpg.places))
    )


async def adopt(
    reach: Reach,
    view: ClusterView,
    handlers: Handlers,
    *,
    tell: Callable[[Event], Awaitable[object]],
    tasks: asyncio.TaskGroup,
) -> None:
    """Connect what runs, tell the core of what does not, and give its orders once more.

    `tell` returns when the core has decided what follows from a fact.
    Every node that is to be adopted has joined.
    """
    await _release_others(reach, view)
    orders = view.unfinished()
    away = [node_id for node_id in view.nodes if not reach.nodes.is_up(node_id)]
    reach.nodes.remembered.up.clear()  # nodes that join from now on join anew
    reach.nodes.remembered.procs.clear()
    lost = [tell(NodeLost(node_id=node_id, reason=NOT_JOINED)) for node_id in away]
    for told in lost:
        await told
    facts: list[Event] = []
    left: dict[JobId, None] = {}
    # All at once: each rank that hangs would hold up all jobs, one after another.
    attached = await asyncio.gather(*(_attach(reach, view, wpg_id) for wpg_id in tuple(view.wpgs)))
    for wpg, gone in filter(None, attached):
        if wpg.wpg_id not in view.wpgs:
            continue
        facts += gone
        if wpg.is_rollout and view.is_current(wpg) and not _leads(reach, view, wpg):
            left[wpg.job_id] = None
    facts += await _carried(reach, view)
    facts += [
        JobEndRequested(job_id=job_id, outcome=JobState.FAILED, reason=NOT_ADOPTED)
        for job_id in left
        if (job := view.jobs.get(job_id)) is not None and job.ending is None
    ]
    facts += [failure for order in orders if (failure := _failure(view, handlers, order, of=left))]
    for fact in facts:
        log.warning("not adopted", fact=repr(fact))
        await tell(fact)
    still = view.unfinished()
    again = [order for order in orders if order in still]
    for order in (*_copies(reach, view), *again):
        handler = handlers[type(order)]
        if (work := handler.perform(order)) is not None:
            close_with(tasks.create_task(handler.finish(order, work, reach.post)), work)
    log.info("adopted", jobs=len(view.jobs), wpgs=len(view.wpgs), orders=len(orders))


def _copies(reach: Reach, view: ClusterView) -> Iterator[Action]:
    """Yield orders to copy the state of durable deployments, where nothing is under way.

    A copy that was being made, or was to be, went with the service before.
    """
    for deployment in view.deployments.values():
        record, wpg = reach.registry.deployments[deployment.deployment_id], view.wpg_of(deployment)
        if record.durable is None or wpg is None or wpg.running or deployment.is_held:
            continue
        if deployment.state is not DeploymentState.READY:
            continue
        is_known = record.durable.unknown_to <= record.durable.seq
        ran = [done.held for done in record.durable.to_replay]
        written = [held.operation.seq for held in ran if held.kind in WRITING_KINDS]
        if not is_known and not deployment.is_window_open:
            written = [deployment.next_seq - 1]
        if written:
            yield KeepState(
                wpg_id=wpg.wpg_id,
                seq=written[-1],
                lease_no=wpg.lease_no,
                beside=deployment.kept_on,
            )


def _leads(reach: Reach, view: ClusterView, wpg: Wpg) -> bool:
    """Have the rollout managers go on with a deployment's instances; return whether they do."""
    deployment = view.deployments[wpg.deployment_id]
    if deployment.state is DeploymentState.STARTING:
        return True  # its `Initialize` is on its way
    fence = reach.fence(lease_no=wpg.lease_no, incarnation=wpg.incarnation)
    addresses = [rank.address for rank in reach.ranks.of(wpg.wpg_id)]
    return reach.rollout.adopt(
        wpg.deployment_id, fence=fence, wpg_id=wpg.wpg_id, addresses=addresses
    )


def _failure(
    view: ClusterView, handlers: Handlers, order: Action, *, of: Container[JobId]
) -> Event | None:
    """Return the outcome of an order to instances of jobs that end; None for what is repeated."""
    wpg = view.wpgs.get(WpgId(getattr(order, "wpg_id", "")))
    if wpg is None or not wpg.is_rollout or wpg.job_id not in of:
        return None
    return handlers[type(order)].failed(order, RESTARTED)


async def _release_others(reach: Reach, view: ClusterView) -> None:
    """Release what state managers hold and no record names."""
    moving = (RelocationStage.CARRYING, RelocationStage.RESTORING)
    known = reach.versions.known()
    known.update(
        VersionId.of(carry.request_of(reach, order))
        for stage in moving
        for order in view.carries(stage)
    )
    request = statemanager_pb2.InventoryRequest()
    for link in [link for link in reach.nodes.links if link.is_up]:
        try:
            found = await reach.ask_state(
                link.node_id, lambda state: state.Inventory(request, timeout=reach.rpc_s)
            )
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.warning("no inventory of state", node=link.node_id, error=error)
            continue
        for version in map(VersionId.of, found.versions):
            if version not in known:
                log.warning("released what nobody knows", node=link.node_id, version=str(version))
                await managed.release(reach, Published(version=version, nodes=(link.node_id,)))


async def _carried(reach: Reach, view: ClusterView) -> list[Event]:
    """Have the copies that new ranks of relocations read; return the ends of those without one."""
    ended: list[Event] = []
    for order in list(view.carries(RelocationStage.RESTORING)):
        try:
            await carry.carry(reach, order)
        except (grpc.aio.AioRpcError, PlexError) as error:
            ended.append(SpawnFailed(wpg_id=order.to_wpg_id, fault=fault_of_call(error)))
    return ended


async def _attach(reach: Reach, view: ClusterView, wpg_id: WpgId) -> tuple[Wpg, list[Event]] | None:
    """Connect the ranks of a WPG; return it with what is to be told of those that cannot be.

    None for one that does not run: the core goes on meanwhile, and some may end.
    """
    wpg = view.wpgs.get(wpg_id)
    if wpg is None or wpg.state is not WpgState.READY:
        return None
    found = [_found(reach, wpg, index) for index in range(len(wpg.places))]
    gone: list[Event] = [
        _gone(wpg, index, why="it ended while no service ran")
        for index, address in enumerate(found)
        if not address and index not in wpg.absent
    ]
    if gone and not wpg.is_rollout:
        return wpg, gone[:1]
    ranks = [
        Rank(
            node_id=place.node_id,
            device=place.device,
            proc_id=f"{wpg.wpg_id}/{index}",
            incarnation=wpg.incarnation_of(index) if address else 0,  # nobody is told of its end
            address=address,
            channel=reach.nodes.dial(address or NOWHERE),
        )
        for index, (place, address) in enumerate(zip(wpg.places, found, strict=True))
    ]
    reach.ranks.add(wpg.wpg_id, ranks)
    try:
        await spawn.describe(reach, reach.registry.by_wpg[wpg.wpg_id])
    except (grpc.aio.AioRpcError, PlexError) as error:
        return wpg, [_gone(wpg, 0, why=f"it does not answer: {error}")]
    return wpg, gone


def _found(reach: Reach, wpg: Wpg, rank: int) -> str:
    """Return where a rank answers; empty when it is not there."""
    proc_id, incarnation = f"{wpg.wpg_id}/{rank}", wpg.incarnation_of(rank)
    for link in reach.nodes.links:
        for proc in link.description.procs if link.is_up else ():
            if (proc.proc_id, proc.incarnation) == (proc_id, incarnation) and proc.address:
                return proc.address
    return ""


def _gone(wpg: Wpg, rank: int, *, why: str) -> ProcExited:
    return ProcExited(
        wpg_id=wpg.wpg_id,
        incarnation=wpg.incarnation_of(rank),
        rank=rank,
        exit_code=0,
        signal=SIGKILL,
        log_tail=why,
    )

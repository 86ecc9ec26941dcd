"""Start and end of a WPG's processes: spawned on their nodes, stopped, their state forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import grpc.aio

from plexclient.wire.v1 import node_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.rpc.errors import checked
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.core import events
from plexsvc.scheduler.core.actions import ForgetWpg, SpawnInstance, SpawnWpg, StopWpg
from plexsvc.scheduler.core.vocabulary import Fault, Place
from plexsvc.scheduler.faults import fault_of
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import durable, host_bytes, lost_versions, managed
from plexsvc.scheduler.orders import process_specs as specs
from plexsvc.scheduler.orders.ranks import Rank
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

STOP_GRACE_US: Final = 2_000_000
"""Time a process has between TERM and KILL."""

MAX_FORGET_TRIES: Final = 5
"""Tries to free a WPG's state on a node that is up."""


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handlers of a WPG's life."""
    return [
        Handler(
            SpawnWpg,
            partial(spawn, reach),
            lambda action, fault: events.SpawnFailed(wpg_id=action.wpg_id, fault=fault),
        ),
        Handler(SpawnInstance, partial(respawn, reach), _respawn_failed),
        Handler(StopWpg, partial(stop, reach), _stop_failed),
        Handler(ForgetWpg, partial(forget, reach), _forget_failed),
    ]


def spawn(reach: Reach, action: SpawnWpg) -> Work:
    """Start every rank of a WPG."""
    wpg = WpgRecord(
        wpg_id=action.wpg_id,
        deployment=reach.registry.deployments[action.deployment_id],
        incarnation=action.incarnation,
        places=action.places,
    )
    reach.recorder.wpg_opened(wpg, is_current=action.replaces is None)
    if wpg.deployment.durable is not None:
        wpg.deployment.durable.reached("placed_us", reach.clock.monotonic_us())
    return _spawn(reach, wpg)


def respawn(reach: Reach, action: SpawnInstance) -> Work:
    """Start a rollout instance in the place of a lost one."""
    wpg = reach.registry.by_wpg[action.wpg_id]
    reach.recorder.rank_respawned(
        wpg, action.rank, incarnation=action.incarnation, place=action.place
    )
    return _respawn(reach, wpg, action)


def stop(reach: Reach, action: StopWpg) -> Work:
    """End every rank of a WPG."""
    wpg = reach.registry.by_wpg.get(action.wpg_id)
    if wpg is not None:
        reach.recorder.wpg_stopping(wpg)
    return _stop(reach, action, wpg)


async def forget(reach: Reach, action: ForgetWpg) -> events.Event:
    """Free all state of a WPG."""
    record = reach.registry.by_wpg.get(action.wpg_id)
    if record is None:
        return events.WpgForgotten(wpg_id=action.wpg_id)
    request = statemanager_pb2.ForgetRequest(
        fence=reach.fence(lease_no=action.lease_no, incarnation=record.incarnation),
        wpg_id=action.wpg_id,
        job_id=record.deployment.job_id,
    )
    for node_id in record.nodes:

        async def on_node(node_id: NodeId = node_id) -> None:
            await reach.ask_state(node_id, lambda state: state.Forget(request, timeout=reach.rpc_s))

        patience = Patience(pause_us=reach.config.connect_retry_us, max_tries=MAX_FORGET_TRIES)
        await _insist(reach, node_id, on_node, patience=patience)
    await reach.ranks.forget(action.wpg_id)
    host_bytes.forget_reads(reach, record)
    deployment = record.deployment
    is_rebuilt = deployment.durable is not None and deployment.durable.is_lost
    if is_rebuilt and record.is_current:
        try:
            await durable.find(reach, record)
        except PlexError as error:
            fault = durable.told(reach, action.wpg_id, fault_of(error))
            reach.post(events.SpawnFailed(wpg_id=action.wpg_id, fault=fault))
    if record.is_current and not is_rebuilt:  # else another takes its versions and engines over
        if deployment.is_rollout:
            await reach.rollout.forget(deployment.deployment_id)
        reach.versions.forget(deployment.deployment_id)
        if deployment.durable is not None:
            await durable.forget(reach, record)
        await managed.release_unused(reach)
    if record.is_current:
        await lost_versions.settle(reach, deployment.deployment_id)
    reach.recorder.forgotten(action.wpg_id)
    return events.WpgForgotten(wpg_id=action.wpg_id)


async def _spawn(reach: Reach, wpg: WpgRecord) -> events.Event | None:
    """Start every rank of a WPG; return once all answer, None if it was stopped meanwhile.

    Raises:
        ExceptionGroup: of `PlexError` (what an agent refused or a rank died of) and call failures.
        AioRpcError: a rank does not answer, and its agent knows of no death.
    """
    hosts = [reach.nodes.link(place.node_id).description for place in wpg.places]
    rendezvous = specs.rendezvous_of(wpg, hosts)
    async with AsyncExitStack() as opened:

        async def spawn_rank(index: int) -> Rank:
            rank = await _insist_on_rank(reach, wpg, index, rendezvous=rendezvous)
            opened.push_async_callback(rank.close)
            return rank

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(spawn_rank(index)) for index in range(len(wpg.places))]
        if reach.registry.by_wpg.get(wpg.wpg_id) is not wpg:
            return None
        reach.ranks.add(wpg.wpg_id, [task.result() for task in tasks])
        opened.pop_all()  # `forget` closes them

    async def may_answer(error: grpc.aio.AioRpcError) -> bool:
        return error.code() is grpc.StatusCode.UNAVAILABLE and not wpg.is_stopping

    try:
        return await retry(
            lambda: describe(reach, wpg),
            on=grpc.aio.AioRpcError,
            again=may_answer,
            clock=reach.clock,
            patience=Patience(
                pause_us=reach.config.connect_retry_us, within_us=reach.config.node_lease_us
            ),
            what=f"what {wpg.wpg_id} takes",
        )
    except grpc.aio.AioRpcError:
        if wpg.is_stopping:  # its agent has told of a death
            return None
        raise


async def _respawn(reach: Reach, wpg: WpgRecord, action: SpawnInstance) -> events.Event | None:
    """Start an instance and give it to the rollout manager; None if its WPG was stopped meanwhile.

    Raises:
        PlexError: what the agent refused, the process died of, or the manager found wrong with it.
        AioRpcError: the agent did not answer for so long that its node counts as lost.
    """
    rank = await _insist_on_rank(reach, wpg, action.rank, rendezvous="")
    if wpg.is_stopping:
        await stop_rank(reach, wpg, rank=action.rank)
        await rank.close()
        return None
    await reach.ranks.replace(wpg.wpg_id, action.rank, rank)
    deployment_id = wpg.deployment.deployment_id
    await reach.rollout.replace(deployment_id, index=action.rank, address=rank.address)
    await lost_versions.settle_all(reach, wpg.deployment.job_id)
    return events.InstanceReady(wpg_id=wpg.wpg_id, rank=action.rank, incarnation=action.incarnation)


async def _insist_on_rank(reach: Reach, wpg: WpgRecord, rank: int, *, rendezvous: str) -> Rank:
    """Start a rank; again, while it is wanted, until an agent that is away must be lost.

    Raises:
        PlexError: what the agent refused or the process died of.
        AioRpcError: the agent did not answer for so long that its node counts as lost.
    """
    incarnation = wpg.incarnation_of(rank)

    async def is_wanted(error: grpc.aio.AioRpcError) -> bool:
        is_away = error.code() is grpc.StatusCode.UNAVAILABLE
        is_latest = wpg.incarnation_of(rank) == incarnation
        return is_away and is_latest and not wpg.is_stopping

    return await retry(
        lambda: _spawn_rank(reach, wpg, rank, rendezvous=rendezvous),
        on=grpc.aio.AioRpcError,
        again=is_wanted,
        clock=reach.clock,
        patience=Patience(
            pause_us=reach.config.connect_retry_us, within_us=reach.config.node_lease_us
        ),
        what=f"spawn of {wpg.wpg_id}/{rank}",
    )


def _respawn_failed(action: SpawnInstance, fault: Fault) -> events.Event:
    return events.InstanceLost(
        wpg_id=action.wpg_id, rank=action.rank, incarnation=action.incarnation, fault=fault
    )


def _stop_failed(action: StopWpg, fault: Fault) -> events.Event:
    """Return that it stopped all the same: others must not wait for its devices for ever."""
    del fault
    return events.WpgStopped(wpg_id=action.wpg_id)


def _forget_failed(action: ForgetWpg, fault: Fault) -> events.Event:
    """Return that it is forgotten all the same, for the same reason."""
    del fault
    return events.WpgForgotten(wpg_id=action.wpg_id)


async def describe(reach: Reach, record: WpgRecord) -> events.WpgReady:
    """Return what each rank takes on its device; of rollout instances, what is theirs."""
    ranks = reach.ranks.of(record.wpg_id)
    if record.is_rollout:
        theirs = tuple(_budget(reach, record, place) for place in record.places)
        return events.WpgReady(wpg_id=record.wpg_id, device_bytes=theirs)
    replies = [await _describe_rank(reach, record, rank) for rank in ranks]
    for rank, reply in zip(ranks, replies, strict=True):
        rank.take_orders(reply.orders_socket)
    if record.deployment.durable is not None:
        record.deployment.durable.reached("up_us", reach.clock.monotonic_us())
    return events.WpgReady(
        wpg_id=record.wpg_id,
        device_bytes=tuple(reply.device_bytes for reply in replies),
        parked_bytes=tuple(reply.parked_bytes for reply in replies),
        pass_bytes=tuple(reply.pass_bytes for reply in replies),
        models=tuple(reply.shared_key for reply in replies if reply.shared_key),
        model_bytes=tuple(reply.shared_bytes for reply in replies if reply.shared_key),
    )


async def learn(reach: Reach, record: WpgRecord) -> None:
    """Take over what an initialised model says of itself."""
    if record.is_rollout:
        return
    reply = await _describe_rank(reach, record, reach.ranks.of(record.wpg_id)[0])
    reach.recorder.learned(
        record.deployment,
        vocab_size=reply.vocab_size,
        max_sequence_length=reply.max_sequence_length,
    )


async def _stop(reach: Reach, action: StopWpg, wpg: WpgRecord | None) -> events.Event:
    if wpg is not None:  # else it waited for devices that it shares, and has no process
        async with asyncio.TaskGroup() as group:
            for rank in range(len(wpg.places)):
                group.create_task(stop_rank(reach, wpg, rank=rank))
        if wpg.deployment.durable is not None:
            wpg.deployment.durable.reached("stopped_us", reach.clock.monotonic_us())
    return events.WpgStopped(wpg_id=action.wpg_id)


async def stop_rank(reach: Reach, record: WpgRecord, *, rank: int) -> None:
    """End one process of a WPG, if it runs; return once it is gone."""
    node_id = record.places[rank].node_id
    request = node_pb2.StopRequest(
        fence=reach.fence(lease_no=0, incarnation=record.incarnation_of(rank)),
        proc_id=f"{record.wpg_id}/{rank}",
        grace_us=STOP_GRACE_US,
    )
    timeout_s = reach.rpc_s + STOP_GRACE_US / 1e6

    async def on_node() -> None:
        await reach.nodes.link(node_id).agent.Stop(request, timeout=timeout_s)

    config = reach.config
    cut_off_us = config.node_lease_us + config.node_grace_us  # then its agent ended every rank
    patience = Patience(pause_us=config.connect_retry_us, within_us=cut_off_us)
    await _insist(reach, node_id, on_node, patience=patience)


async def _insist(
    reach: Reach, node_id: NodeId, call: Callable[[], Awaitable[None]], *, patience: Patience
) -> None:
    """Try a teardown call until it succeeds, the node is lost, or patience is over."""

    async def call_if_up() -> None:
        if reach.nodes.is_up(node_id):  # else its agent has killed every rank
            await call()

    try:
        await retry(
            call_if_up,
            on=(grpc.aio.AioRpcError, PlexError),
            clock=reach.clock,
            patience=patience,
            what=f"teardown on {node_id}",
        )
    except (grpc.aio.AioRpcError, PlexError) as error:
        log.error("teardown call gave up", node=node_id, error=error)


async def _spawn_rank(reach: Reach, wpg: WpgRecord, rank: int, *, rendezvous: str) -> Rank:
    place, incarnation = wpg.places[rank], wpg.incarnation_of(rank)
    address = await start_process(reach, wpg, rank, rendezvous=rendezvous)
    return Rank(
        node_id=place.node_id,
        device=place.device,
        proc_id=f"{wpg.wpg_id}/{rank}",
        incarnation=incarnation,
        address=address,
        channel=reach.nodes.dial(address),
    )


async def start_process(reach: Reach, wpg: WpgRecord, rank: int, *, rendezvous: str = "") -> str:
    """Have a node's agent start a process of a WPG; return its address once it serves.

    Raises:
        PlexError: `node_lost`, or what the agent refused or the process died of.
        AioRpcError: the agent did not answer.
    """
    place = wpg.places[rank]
    link = reach.nodes.link(place.node_id)
    spec = specs.proc_spec(
        wpg,
        rank=rank,
        host=link.description,
        rendezvous=rendezvous,
        epoch=reach.epoch,
        device_bytes=_budget(reach, wpg, place),
        config=reach.config,
    )
    fence = reach.fence(lease_no=0, incarnation=wpg.incarnation_of(rank))
    request = node_pb2.SpawnRequest(fence=fence, spec=spec)  # the agent ends an older one first
    reply = await link.agent.Spawn(request, timeout=reach.config.spawn_timeout_us / 1e6)
    return checked(reply).address


async def _describe_rank(reach: Reach, record: WpgRecord, rank: Rank) -> worker_pb2.DescribeReply:
    request = worker_pb2.DescribeRequest(wpg_id=record.wpg_id)
    reply: worker_pb2.DescribeReply = await rank.stub.Describe(request, timeout=reach.rpc_s)
    return reply


def _budget(reach: Reach, wpg: WpgRecord, place: Place) -> int:
    """Return how much of a device a process may take: all, unless its deployment says less."""
    description = reach.nodes.link(place.node_id).description
    total = next(d.bytes_total for d in description.devices if d.index == place.device)
    return wpg.deployment.instance_bytes or total

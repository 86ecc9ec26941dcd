"""How a WPG's processes come up: spawned on their nodes, asked what they need, made known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from plexclient.wire.v1 import node_pb2, worker_pb2
from plexsvc.ids import WpgId
from plexsvc.scheduler import spawn as specs
from plexsvc.scheduler.core.actions import SpawnWpg
from plexsvc.scheduler.outcomes import error_of, fault_from_wire
from plexsvc.scheduler.registry import DeploymentRecord, Rank
from plexsvc.transport.channels import open_channel

if TYPE_CHECKING:
    from plexsvc.scheduler.executor import Executor


async def spawn(executor: Executor, action: SpawnWpg, record: DeploymentRecord) -> list[Rank]:
    """Start every rank of a WPG and return them once all answer.

    Raises:
        ExceptionGroup: of `PlexError` (what an agent refused or a rank died of) and call failures.
    """
    hosts = [executor.nodes.link(place.node_id).host for place in action.places]
    rendezvous = specs.rendezvous_of(action, hosts)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_spawn_rank(executor, action, record, rank, rendezvous=rendezvous))
            for rank in range(len(action.places))
        ]
    return [task.result() for task in tasks]


async def describe(executor: Executor, record: DeploymentRecord) -> tuple[int, ...]:
    """Return what each rank's state takes on its device; rollout instances reserve theirs whole."""
    if record.is_rollout:
        return tuple(_device_bytes(executor, rank) for rank in record.ranks)
    replies = [await _describe_rank(executor, record, rank) for rank in record.ranks]
    return tuple(reply.device_bytes for reply in replies)


async def learn(executor: Executor, record: DeploymentRecord) -> None:
    """Take over what an initialised model says of itself."""
    if record.is_rollout:
        return
    reply = await _describe_rank(executor, record, record.ranks[0])
    view = record.view
    view.vocab_size = reply.vocab_size or view.vocab_size
    view.max_sequence_length = reply.max_sequence_length or view.max_sequence_length


def stop_request(
    executor: Executor, wpg_id: WpgId, *, rank: int, grace_us: int
) -> node_pb2.StopRequest:
    """Return the order to end one rank."""
    return node_pb2.StopRequest(
        fence=executor.fence(lease_no=0), proc_id=f"{wpg_id}/{rank}", grace_us=grace_us
    )


async def _spawn_rank(
    executor: Executor, action: SpawnWpg, record: DeploymentRecord, rank: int, *, rendezvous: str
) -> Rank:
    place = action.places[rank]
    link = executor.nodes.link(place.node_id)
    spec = specs.proc_spec(
        action,
        rank=rank,
        deployment=record.view,
        host=link.host,
        rendezvous=rendezvous,
        epoch=executor.epoch,
        config=executor.config,
    )
    request = node_pb2.SpawnRequest(
        fence=executor.fence(lease_no=0, incarnation=action.incarnation), spec=spec
    )
    timeout_s = executor.config.spawn_timeout_us / 1e6
    reply = await link.agent.Spawn(request, timeout=timeout_s)
    if reply.HasField("error"):
        raise error_of(fault_from_wire(reply.error))
    return Rank(
        node_id=place.node_id,
        device=place.device,
        proc_id=spec.proc_id,
        address=reply.address,
        channel=open_channel(reply.address),
    )


async def _describe_rank(
    executor: Executor, record: DeploymentRecord, rank: Rank
) -> worker_pb2.DescribeReply:
    request = worker_pb2.DescribeRequest(wpg_id=record.wpg_id or "")
    reply: worker_pb2.DescribeReply = await rank.stub.Describe(request, timeout=executor.rpc_s)
    return reply


def _device_bytes(executor: Executor, rank: Rank) -> int:
    description = executor.nodes.link(rank.node_id).description
    return next(d.bytes_total for d in description.devices if d.index == rank.device)

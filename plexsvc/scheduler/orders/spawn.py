"""How a WPG's processes come up: spawned on their nodes, asked what they need, made known."""

from __future__ import annotations

import asyncio

from plexclient.wire.v1 import node_pb2, worker_pb2
from plexsvc.rpc.channels import open_channel
from plexsvc.scheduler.core.actions import SpawnWpg
from plexsvc.scheduler.faults import error_of, fault_from_wire
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, Rank
from plexsvc.scheduler.orders import process_specs as specs
from plexsvc.scheduler.orders.reach import Reach


async def spawn(reach: Reach, action: SpawnWpg, record: DeploymentRecord) -> list[Rank]:
    """Start every rank of a WPG and return them once all answer.

    Raises:
        ExceptionGroup: of `PlexError` (what an agent refused or a rank died of) and call failures.
    """
    hosts = [reach.nodes.link(place.node_id).host for place in action.places]
    rendezvous = specs.rendezvous_of(action, hosts)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_spawn_rank(reach, action, record, rank, rendezvous=rendezvous))
            for rank in range(len(action.places))
        ]
    return [task.result() for task in tasks]


async def describe(reach: Reach, record: DeploymentRecord) -> tuple[int, ...]:
    """Return what each rank's state takes on its device; rollout instances reserve theirs whole."""
    if record.is_rollout:
        return tuple(_device_bytes(reach, rank) for rank in record.ranks)
    replies = [await _describe_rank(reach, record, rank) for rank in record.ranks]
    for rank, reply in zip(record.ranks, replies, strict=True):
        rank.take_orders(reply.orders_port)
    return tuple(reply.device_bytes for reply in replies)


async def learn(reach: Reach, record: DeploymentRecord) -> None:
    """Take over what an initialised model says of itself."""
    if record.is_rollout:
        return
    reply = await _describe_rank(reach, record, record.ranks[0])
    view = record.view
    view.vocab_size = reply.vocab_size or view.vocab_size
    view.max_sequence_length = reply.max_sequence_length or view.max_sequence_length


def stop_request(
    reach: Reach, record: DeploymentRecord, *, rank: int, grace_us: int
) -> node_pb2.StopRequest:
    """Return the order to end one rank."""
    fence = reach.fence(lease_no=0, incarnation=record.incarnation)
    proc_id = f"{record.wpg_id}/{rank}"
    return node_pb2.StopRequest(fence=fence, proc_id=proc_id, grace_us=grace_us)


async def _spawn_rank(
    reach: Reach, action: SpawnWpg, record: DeploymentRecord, rank: int, *, rendezvous: str
) -> Rank:
    place = action.places[rank]
    link = reach.nodes.link(place.node_id)
    spec = specs.proc_spec(
        action,
        rank=rank,
        deployment=record.view,
        host=link.host,
        rendezvous=rendezvous,
        epoch=reach.epoch,
        config=reach.config,
    )
    request = node_pb2.SpawnRequest(
        fence=reach.fence(lease_no=0, incarnation=action.incarnation), spec=spec
    )
    timeout_s = reach.config.spawn_timeout_us / 1e6
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
    reach: Reach, record: DeploymentRecord, rank: Rank
) -> worker_pb2.DescribeReply:
    request = worker_pb2.DescribeRequest(wpg_id=record.wpg_id or "")
    reply: worker_pb2.DescribeReply = await rank.stub.Describe(request, timeout=reach.rpc_s)
    return reply


def _device_bytes(reach: Reach, rank: Rank) -> int:
    description = reach.nodes.link(rank.node_id).description
    return next(d.bytes_total for d in description.devices if d.index == rank.device)

"""Seats in engines that deployments share: the node agent orders them of an engine's process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import grpc.aio

from plexclient.wire.v1 import rollout_pb2, rollout_pb2_grpc
from plexsvc.node.ranks import RankProcess
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import checked, error_from
from plexsvc.rpc.keys import ClusterKeys

LEAVE_S: Final = 20.0
"""How long an engine may take to end a seat: a step, and the calls of that seat."""


async def take(
    engine: RankProcess, proc_id: str, config: Mapping[str, Any], *, keys: ClusterKeys
) -> str:
    """Open an instance in an engine that serves; return its address.

    Raises:
        PlexError: `queue_full` when its seats are taken; `unavailable` when it does not answer.
    """
    request = rollout_pb2.TakeSeatRequest(proc_id=proc_id, config_json=json.dumps(config))
    async with open_channel(engine.address, keys) as channel:
        try:
            reply = await rollout_pb2_grpc.SharedEngineStub(channel).TakeSeat(request)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
    return checked(reply).address


async def leave(engine: RankProcess, proc_id: str, *, keys: ClusterKeys) -> None:
    """End an instance; its adapter is gone on return.

    Raises:
        PlexError: the engine hangs or is gone.
    """
    request = rollout_pb2.LeaveSeatRequest(proc_id=proc_id)
    async with open_channel(engine.address, keys) as channel:
        try:
            await rollout_pb2_grpc.SharedEngineStub(channel).LeaveSeat(request, timeout=LEAVE_S)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error

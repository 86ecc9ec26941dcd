"""Processes of spot instances: spawned and killed on nodes' devices of kind `spot`.

The core places nothing on such devices: which deployment has an instance there is decided by the
rollout manager's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc.aio

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError, not_found
from plexsvc.ids import DeploymentId, NodeId, WpgId
from plexsvc.log import Log
from plexsvc.rpc.errors import error_from
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import spawn
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)


class SpotHosts:
    """The nodes with devices of kind `spot`."""

    def __init__(self, reach: Reach, *, is_open: Callable[[NodeId], bool]) -> None:
        """Say of a node by `is_open` whether it takes further work."""
        self._reach, self._is_open = reach, is_open

    def slots(self) -> Mapping[str, bool]:
        """Return the spot devices of nodes that are up, and whether each may be used."""
        return {place.unit: self._is_open(place.node_id) for place in self._places()}

    async def start(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> str:
        """Start an instance on a device; return its address once it serves.

        Raises:
            PlexError: `node_lost`, `not_found`, or why it did not come up.
        """
        wpg = self._wpg(self._place(slot_id), number=number, deployment_id=deployment_id)
        try:
            return await spawn.start_process(self._reach, wpg, 0)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error

    async def stop(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> None:
        """Kill an instance; return once it is gone, or its node is."""
        reach, node_id = self._reach, NodeId(slot_id.rpartition(":")[0])
        request = node_pb2.StopRequest(
            fence=reach.fence(lease_no=0), proc_id=f"{_wpg_id(deployment_id, number)}/0"
        )
        try:
            link = reach.nodes.link(node_id)
            await link.agent.Stop(request, timeout=reach.rpc_s)
        except (PlexError, grpc.aio.AioRpcError) as error:
            log.warning("spot instance not stopped", slot=slot_id, error=error)

    def _wpg(self, place: Place, *, number: int, deployment_id: DeploymentId) -> WpgRecord:
        record = self._reach.registry.deployments.get(deployment_id)
        if record is None or record.wpg is None:
            raise not_found(
                f"deployment {deployment_id} is gone; no spot instance is started for it"
            )
        return WpgRecord(
            wpg_id=_wpg_id(deployment_id, number),
            deployment=record,
            incarnation=1,  # its id is its own: whatever the deployment's incarnation, it obeys
            places=(place,),
        )

    def _place(self, slot_id: str) -> Place:
        found = next((place for place in self._places() if place.unit == slot_id), None)
        if found is None:
            raise PlexError(ErrorCode.NODE_LOST, f"no spot device {slot_id} is there now")
        return found

    def _places(self) -> list[Place]:
        return [
            place for link in self._reach.nodes.links if link.is_up for place in link.spot_places
        ]


def _wpg_id(deployment_id: DeploymentId, number: int) -> WpgId:
    return WpgId(f"{deployment_id}/spot-{number}")

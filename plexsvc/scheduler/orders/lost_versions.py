"""Versions that instances sample from, and whose nodes are lost.

A durable deployment that was rebuilt publishes again what its state still is. Any other version is
lost for good, which its instances are told: they would look for it in vain. While a deployment is
rebuilt nothing is said of its versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import grpc.aio

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId
from plexsvc.log import Log
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.core.vocabulary import WRITING_KINDS, DeploymentState
from plexsvc.scheduler.ledger.held import Held, Published
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import host_bytes, managed
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

MAX_TRIES: Final = 20
"""Tries to publish again what readers still hold a part of: each ends soon."""


GOES_ON: Final = frozenset({DeploymentState.STARTING, DeploymentState.READY})


async def publish_again(reach: Reach, held: Held, record: WpgRecord) -> None:
    """Freeze again what is needed of a rebuilt deployment; called in its `Initialize`."""
    durable, deployment_id = record.deployment.durable, record.deployment.deployment_id
    assert durable is not None, deployment_id
    ran = (one.held for one in durable.to_replay)
    wrote = [one.operation.seq for one in ran if one.kind in WRITING_KINDS]
    for published in list(_needed(reach, deployment_id)):
        if published.version.version > max([durable.seq, *wrote]):
            try:
                await _publish_again(reach, held, record, published)
            except (PlexError, grpc.aio.AioRpcError) as error:
                version = str(published.version)
                log.warning("version not published again", version=version, error=error)
    await settle(reach, deployment_id)


async def settle(reach: Reach, deployment_id: DeploymentId) -> None:
    """Tell instances where the versions of a deployment lie that they serve, or that they do not.

    Nothing is said while it is rebuilt.
    """
    record = reach.registry.deployments.get(deployment_id)
    durable = None if record is None else record.durable
    if record is not None and record.state in GOES_ON and durable is not None and durable.is_lost:
        return
    for published in list(_needed(reach, deployment_id)):
        if await managed.is_there(reach, published):
            with suppress(PlexError):  # its node is lost this moment: instances there come again
                await reach.rollout.locate(reach.locate(published))
            continue
        log.warning("version lost", version=str(published.version), nodes=published.nodes)
        lost = statemanager_pb2.PublishedVersion(**published.version._asdict())
        await reach.rollout.locate(lost)


async def settle_all(reach: Reach, job_id: JobId) -> None:
    """Do so for all deployments of a job: instances of it look for what they serve."""
    for version in reach.rollout.versions_in_use():
        record = reach.registry.deployments.get(DeploymentId(version.deployment_id))
        if record is not None and record.job_id == job_id:
            await settle(reach, record.deployment_id)


def _needed(reach: Reach, deployment_id: DeploymentId) -> Iterator[Published]:
    for version in sorted(managed.used(reach)):
        if version.deployment_id == deployment_id:
            try:
                yield reach.versions.find(deployment_id, version.version)
            except PlexError as error:  # the service before did not keep it
                log.warning("version not known", version=str(version), error=error)


async def _publish_again(reach: Reach, held: Held, record: WpgRecord, lost: Published) -> None:
    """Freeze a version again that is not whole any more, under its name.

    Raises:
        PlexError: as `managed.publish`.
        AioRpcError: a state manager did not answer.
    """
    if await managed.is_there(reach, lost):
        return
    await managed.release(reach, lost)  # its parts may be of other ranks than the ones that follow
    request = statemanager_pb2.PublishRequest(
        **lost.version._asdict(),
        fence=reach.fence(lease_no=held.lease_no, incarnation=record.incarnation),
        wpg_id=record.wpg_id,
    )

    async def is_read(error: PlexError) -> bool:
        return error.code == ErrorCode.BAD_REQUEST

    published, _ = await retry(
        partial(managed.publish, reach, record, request),
        on=PlexError,
        again=is_read,
        clock=reach.clock,
        patience=Patience(pause_us=reach.config.connect_retry_us, max_tries=MAX_TRIES),
        what=f"{lost.version} once more",
    )
    reach.versions.add(published)
    managed.note(reach, record.deployment.deployment_id)
    host_bytes.tell_held(reach, record.deployment.deployment_id)
    log.info("version published again", version=str(lost.version))

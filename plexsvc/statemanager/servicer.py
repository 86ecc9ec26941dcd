"""The state manager's control plane: the gRPC service over the node's state.

Handlers run their blocking work on a bounded pool of threads; order and exclusion come from the WPG
locks underneath, so a call that its caller gave up on still ends in a defined state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2, service_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId, WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.rpc.residency import ON_WIRE, TARGETS
from plexsvc.rpc.status import abort_with
from plexsvc.statelink.opening import read_manifest, read_whole
from plexsvc.statemanager import checkpoints, snapshot
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.core import WpgState
from plexsvc.statemanager.moves import MoveOutcome, Mover
from plexsvc.statemanager.node import Node
from plexsvc.statemanager.publishing import Progress, chunked
from plexsvc.statemanager.shelves import VersionKey
from plexsvc.statemanager.staging import Upload
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import Published

log = Log(__name__)

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

MAX_CONTROL_CALLS: Final = 32
"""Control calls that work at once; further ones wait."""


class StateManagerServicer(statemanager_pb2_grpc.StateManagerServicer):
    """Answers for one node; `data_socket` is told to those who may map."""

    def __init__(
        self, node: Node, *, clients: Clients, mover: Mover, clock: Clock, data_socket: str
    ) -> None:
        self._node = node
        self._clients = clients
        self._clock = clock
        self._data_socket = data_socket
        self._mover = mover
        self._threads = ThreadPoolExecutor(MAX_CONTROL_CALLS, thread_name_prefix="control")

    async def Move(  # noqa: N802 - named by the wire
        self, request: statemanager_pb2.MoveRequest, context: Context
    ) -> statemanager_pb2.MoveReply:
        """Move a WPG; the reply says what was copied and how long it took."""
        del context
        try:
            outcome = await self._run(lambda: self._move(request))
        except PlexError as error:
            residency = self._residency(WpgId(request.wpg_id))
            wire = wire_errors.to_wire(error)
            return statemanager_pb2.MoveReply(error=wire, residency=residency)
        return statemanager_pb2.MoveReply(
            nbytes=outcome.nbytes,
            copy_us=outcome.copy_us,
            total_us=outcome.total_us,
            step_us=outcome.step_us,
            residency=ON_WIRE[outcome.residency],
        )

    async def Publish(  # noqa: N802
        self, request: statemanager_pb2.PublishRequest, context: Context
    ) -> statemanager_pb2.PublishReply:
        """Freeze the parameters as a version; publishing it again changes nothing."""
        del context
        try:
            return await self._run(lambda: self._publish(request))
        except PlexError as error:
            return statemanager_pb2.PublishReply(error=wire_errors.to_wire(error))

    async def ReleaseVersion(  # noqa: N802
        self, request: statemanager_pb2.ReleaseVersionRequest, context: Context
    ) -> statemanager_pb2.ReleaseVersionReply:
        """Drop a version when its last mapping goes."""
        try:
            self._node.admit(request.fence)
        except PlexError as error:
            await abort_with(context, error)
        self._node.publisher.release(_version_key(request))
        return statemanager_pb2.ReleaseVersionReply()

    async def GetManifest(  # noqa: N802
        self, request: statemanager_pb2.GetManifestRequest, context: Context
    ) -> statemanager_pb2.VersionManifest:
        """Return the manifest of a version on this node."""
        try:
            return self._node.publisher.manifest(_version_key(request))
        except PlexError as error:
            await abort_with(context, error)

    async def Materialize(  # noqa: N802
        self, request: statemanager_pb2.MaterializeRequest, context: Context
    ) -> statemanager_pb2.MaterializeReply:
        """Write a checkpoint."""
        del context
        try:
            written = await self._run(lambda: self._materialize(request))
        except PlexError as error:
            return statemanager_pb2.MaterializeReply(error=wire_errors.to_wire(error))
        return statemanager_pb2.MaterializeReply(nbytes=written.nbytes, files=written.files)

    async def ReadVersion(  # noqa: N802
        self, request: statemanager_pb2.ReadVersionRequest, context: Context
    ) -> AsyncIterator[common_pb2.Chunk]:
        """Stream the wanted boxes of a version one after the other, or all of its region."""
        offset = 0
        try:
            arrays = self._node.publisher.read(_version_key(request), request.pieces)
            for array in arrays:
                for data in chunked(array):
                    yield common_pb2.Chunk(offset=offset, data=data)
                    offset += len(data)
        except PlexError as error:
            await abort_with(context, error)

    async def Digest(  # noqa: N802
        self, request: statemanager_pb2.DigestRequest, context: Context
    ) -> statemanager_pb2.DigestReply:
        """Hash the state, the same wherever it is."""
        del context
        try:
            return await self._run(lambda: self._digest(request))
        except PlexError as error:
            return statemanager_pb2.DigestReply(error=wire_errors.to_wire(error))

    async def Forget(  # noqa: N802
        self, request: statemanager_pb2.ForgetRequest, context: Context
    ) -> statemanager_pb2.ForgetReply:
        """Free all a WPG has; its ranks are cut off."""
        wpg_id, fence = WpgId(request.wpg_id), request.fence
        try:
            freed = await self._run(lambda: self._clients.forget(wpg_id, fence))
        except PlexError as error:
            await abort_with(context, error)
        return statemanager_pb2.ForgetReply(freed_bytes=freed)

    async def Inventory(  # noqa: N802
        self, request: statemanager_pb2.InventoryRequest, context: Context
    ) -> statemanager_pb2.InventoryReply:
        """Say what is where."""
        del request, context
        used, total = self._node.staging.usage()
        with self._node.lock:
            ledger = self._node.ledger
            return statemanager_pb2.InventoryReply(
                node_id=self._node.config.node_id,
                wpgs=[_wpg_on_wire(wpg) for wpg in ledger.wpgs.values()],
                devices=[
                    statemanager_pb2.DeviceMemory(
                        index=index,
                        bytes_used=budget.used,
                        bytes_total=budget.total,
                        bytes_peak=budget.peak,
                    )
                    for index, budget in ledger.devices.items()
                ],
                host_bytes_used=ledger.host.used,
                host_bytes_total=ledger.host.total,
                staging_bytes_used=used,
                staging_bytes_total=total,
                max_scheduler_epoch=ledger.max_epoch,
                data_socket=self._data_socket,
            )

    async def Stage(  # noqa: N802
        self, request_iterator: AsyncIterator[service_pb2.StageRequest], context: Context
    ) -> service_pb2.StageReply:
        """Take a bundle into staging memory and validate it there."""
        del context
        upload: Upload | None = None
        try:
            header = await _first(request_iterator)
            upload = self._node.staging.begin(header)
            if upload is None:
                return service_pb2.StageReply(nbytes=header.nbytes)
            async for request in request_iterator:
                upload.write(request.chunk)
            nbytes = await self._run(upload.finish)
            upload = None
            return service_pb2.StageReply(nbytes=nbytes)
        except PlexError as error:
            return service_pb2.StageReply(error=wire_errors.to_wire(error))
        finally:
            if upload is not None:
                upload.abandon()

    async def ReadStaged(  # noqa: N802
        self, request: statemanager_pb2.ReadStagedRequest, context: Context
    ) -> AsyncIterator[common_pb2.Chunk]:
        """Stream a finished bundle from an offset on."""
        offset = request.offset
        try:
            while data := self._node.staging.read(request.staging_id, offset):
                yield common_pb2.Chunk(offset=offset, data=data)
                offset += len(data)
        except PlexError as error:
            await abort_with(context, error)

    async def DropStaged(  # noqa: N802
        self, request: statemanager_pb2.DropStagedRequest, context: Context
    ) -> statemanager_pb2.DropStagedReply:
        """Drop bundles by id, or all of a job."""
        del context
        job_id = JobId(request.job_id) if request.job_id else None
        freed = self._node.staging.drop(list(request.staging_ids), job_id=job_id)
        return statemanager_pb2.DropStagedReply(freed_bytes=freed)

    def close(self) -> None:
        """Wait for the calls at work."""
        self._threads.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _move(self, request: statemanager_pb2.MoveRequest) -> MoveOutcome:
        if request.to not in TARGETS:
            name = common_pb2.Residency.Name(request.to)
            text = f"cannot move {request.wpg_id} to {name}; tiers are DEVICE and HOST"
            raise PlexError(ErrorCode.BAD_REQUEST, text)
        return self._mover.move(
            WpgId(request.wpg_id),
            TARGETS[request.to],
            fence=request.fence,
            move_id=request.move_id,
        )

    def _publish(self, request: statemanager_pb2.PublishRequest) -> statemanager_pb2.PublishReply:
        wpg_id, key = WpgId(request.wpg_id), _version_key(request)
        self._node.wait_until_settled()
        with self._node.wpg_locks.hold(wpg_id):
            self._node.admit(request.fence, wpg_id)
            start_us = self._clock.monotonic_us()
            manifest = self._node.publisher.find(key)
            if manifest is None:
                manifest = self._freeze(
                    key, wpg_id, is_complete=request.complete, is_boundary=not request.mid_window
                )
            copy_us = self._clock.monotonic_us() - start_us
        return statemanager_pb2.PublishReply(nbytes=manifest.nbytes, copy_us=copy_us)

    def _freeze(
        self, key: VersionKey, wpg_id: WpgId, *, is_complete: bool, is_boundary: bool
    ) -> statemanager_pb2.VersionManifest:
        """Copy parameters, or all but gradients with the scalars; the caller holds the lock."""
        taken = snapshot.take(self._node, wpg_id)
        if is_complete and is_boundary and taken.has_gradients:
            text = f"{wpg_id} has accumulated gradients, which belong to its ranks"
            raise PlexError(ErrorCode.BAD_REQUEST, f"{text}; step or zero_grad first")
        scalars = json.dumps({str(r): dict(s) for r, s in taken.scalars.items()})
        progress = Progress(scalars_json=scalars, applied_seq=taken.applied_seq)
        return self._node.publisher.publish(
            key,
            taken.index,
            job_id=taken.job_id,
            region=taken.region,
            progress=progress if is_complete else None,
        )

    def _materialize(self, request: statemanager_pb2.MaterializeRequest) -> checkpoints.Written:
        wpg_id = WpgId(request.wpg_id)
        self._node.wait_until_settled()
        with self._node.wpg_locks.hold(wpg_id):
            self._node.admit(request.fence, wpg_id)
            return checkpoints.materialize(
                self._state(wpg_id, request.copies),
                Path(request.path),
                model=Path(request.model) if request.model else None,
                optimizer=request.optimizer,
                owner=wpg_id,
            )

    def _digest(self, request: statemanager_pb2.DigestRequest) -> statemanager_pb2.DigestReply:
        wpg_id = WpgId(request.wpg_id)
        self._node.wait_until_settled()
        with self._node.wpg_locks.hold(wpg_id):
            self._node.admit(request.fence, wpg_id)
            taken = self._state(wpg_id, request.copies)
            return statemanager_pb2.DigestReply(
                digests=snapshot.digests(taken), applied_seq=taken.applied_seq
            )

    def _state(self, wpg_id: WpgId, copies: statemanager_pb2.PublishedVersion) -> snapshot.Snapshot:
        """Return a WPG's state as it is here, or as copies of all its nodes have it."""
        if not copies.holders:
            return snapshot.take(self._node, wpg_id)
        job_id = self._node.state_of(wpg_id).job_id
        opened = [self._open_copy(copies, holder) for holder in copies.holders]
        return snapshot.of_copies(opened, job_id=job_id)

    def _open_copy(
        self, copies: statemanager_pb2.PublishedVersion, holder: statemanager_pb2.VersionHolder
    ) -> Published:
        if holder.node_id == self._node.config.node_id:
            key = _version_key(copies)
            (data,) = self._node.publisher.read(key, ())
            return Published(manifest=self._node.publisher.manifest(key), data=data.data)
        streamed = read_whole(read_manifest(copies, holder), holder)
        verify(streamed.manifest, streamed.data)
        return streamed

    def _residency(self, wpg_id: WpgId) -> common_pb2.Residency:
        with self._node.lock:
            wpg = self._node.ledger.wpgs.get(wpg_id)
        return ON_WIRE[wpg.residency if wpg is not None else Residency.NONE]


async def _first(requests: AsyncIterator[service_pb2.StageRequest]) -> service_pb2.StageHeader:
    async for request in requests:
        if request.HasField("header"):
            return request.header
        break
    text = "an upload starts with its header; send StageHeader first"
    raise PlexError(ErrorCode.BAD_REQUEST, text)


def _version_key(
    request: statemanager_pb2.PublishRequest
    | statemanager_pb2.ReleaseVersionRequest
    | statemanager_pb2.PublishedVersion
    | statemanager_pb2.GetManifestRequest
    | statemanager_pb2.ReadVersionRequest,
) -> VersionKey:
    return VersionKey(DeploymentId(request.deployment_id), request.version)


def _wpg_on_wire(wpg: WpgState) -> statemanager_pb2.WpgState:
    return statemanager_pb2.WpgState(
        wpg_id=wpg.wpg_id,
        incarnation=wpg.incarnation,
        residency=ON_WIRE[wpg.residency],
        device_bytes=wpg.nbytes if wpg.is_on_device else 0,
        host_bytes=wpg.nbytes,
        switch_bytes=wpg.switch_bytes or wpg.nbytes,
        lease_no=wpg.lease_no,
        applied_seq=wpg.applied_seq,
    )

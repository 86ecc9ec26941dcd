"""The state manager's control plane: the gRPC service over the node's state.

Handlers run their blocking work on bounded pools of threads: one for what uses a WPG's state, under
its lock and at the speed of memory, one for what writes and hashes copies, however slow the disk.
Work whose caller gave up stops before anything of it becomes visible.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2, service_pb2
from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request
from plexsvc.ids import JobId, VersionId, WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.residency import ON_WIRE, TARGETS
from plexsvc.statemanager import snapshot
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.entries import WpgEntry
from plexsvc.statemanager.links import KeyedLocks
from plexsvc.statemanager.moves import MoveOutcome, StateMover
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.parking import Parking
from plexsvc.statemanager.publishing import (
    COMPLETE_KINDS,
    PUBLISHED_KINDS,
    Progress,
    Version,
)
from plexsvc.statemanager.saving import Saver
from plexsvc.weights import pieces
from plexsvc.weights.manifests import part_name, scalars_by_rank, steps

log = Log(__name__)

T = TypeVar("T")
SERVICE: Final = pb.DESCRIPTOR.services_by_name["StateManager"]

MAX_CONTROL_CALLS: Final = 32
"""Control calls that work at once; further ones wait."""


class StateManagerServicer:
    """Answers for one node, each method under its name on the wire in Python's spelling.

    `data_socket` is told to those who may map. An error is raised unless its reply has a field for
    it.
    """

    def __init__(
        self,
        node: ManagedNode,
        *,
        clients: Clients,
        mover: StateMover,
        parking: Parking,
        clock: Clock,
        data_socket: str,
        keys: ClusterKeys,
    ) -> None:
        self._node = node
        self._clients = clients
        self._clock = clock
        self._data_socket = data_socket
        self._mover = mover
        self._parking = parking
        self._versions = KeyedLocks()
        self._threads = ThreadPoolExecutor(MAX_CONTROL_CALLS, thread_name_prefix="control")
        self._saver = Saver(node, keys=keys)
        self.materialize = self._saver.materialize
        self.write_shards = self._saver.write_shards

    async def move(self, request: pb.MoveRequest) -> pb.MoveReply:
        """Move a WPG; the reply says what was copied and how long it took."""
        try:
            outcome = await self._run(lambda caller: self._move(request, caller), of=request.wpg_id)
        except PlexError as error:
            with self._node.lock:
                wpg = self._node.ledger.wpgs.get(WpgId(request.wpg_id))
            residency = ON_WIRE[wpg.residency if wpg is not None else Residency.NONE]
            return pb.MoveReply(error=wire_errors.to_wire(error), residency=residency)
        return pb.MoveReply(
            nbytes=outcome.nbytes,
            copy_us=outcome.copy_us,
            total_us=outcome.total_us,
            step_us=outcome.step_us,
            residency=ON_WIRE[outcome.residency],
        )

    async def publish(self, request: pb.PublishRequest) -> pb.PublishReply:
        """Freeze the parameters as a version; publishing it again changes nothing."""
        try:
            return await self._run(lambda caller: self._publish(request, caller), of=request.wpg_id)
        except PlexError as error:
            return pb.PublishReply(error=wire_errors.to_wire(error))

    async def release_version(self, request: pb.ReleaseVersionRequest) -> pb.ReleaseVersionReply:
        """Drop a version when its last mapping goes."""
        await self._run(lambda _: self._release(request))
        return pb.ReleaseVersionReply()

    async def get_manifest(self, request: pb.GetManifestRequest) -> pb.VersionManifest:
        """Return the manifest of a version on this node."""
        reply = pb.VersionManifest(bytes_at=self._node.arrivals.address)
        reply.MergeFrom(self._node.publisher.manifest(VersionId.of(request)))
        return reply

    async def digest(self, request: pb.DigestRequest) -> pb.DigestReply:
        """Hash the state, the same wherever it is."""
        try:
            return await self._run(
                lambda caller: self._digest(request, caller), self._saver.threads, of=request.wpg_id
            )
        except PlexError as error:
            return pb.DigestReply(error=wire_errors.to_wire(error))

    async def forget(self, request: pb.ForgetRequest) -> pb.ForgetReply:
        """Free all a WPG has; its ranks are cut off."""
        wpg_id, fence = WpgId(request.wpg_id), request.fence
        freed = await self._run(lambda _: self._clients.forget(wpg_id, fence))
        return pb.ForgetReply(freed_bytes=freed)

    async def inventory(self, request: pb.InventoryRequest) -> pb.InventoryReply:
        """Say what is where."""
        del request
        used, total = self._node.staging.usage()
        with self._node.lock:
            ledger = self._node.ledger
            return pb.InventoryReply(
                node_id=self._node.config.node_id,
                wpgs=[self._wpg_on_wire(wpg) for wpg in ledger.wpgs.values()],
                devices=[
                    pb.DeviceMemory(
                        index=index,
                        bytes_used=budget.used,
                        bytes_total=budget.total,
                        bytes_peak=budget.peak,
                    )
                    for index, budget in ledger.devices.items()
                ],
                host_bytes_used=ledger.host.used,
                host_bytes_total=ledger.host.total,
                disk_bytes_used=ledger.disk.used,
                disk_bytes_total=ledger.disk.total,
                sunk_bytes=self._parking.sunk_bytes,
                risen_bytes=self._parking.risen_bytes,
                queued_bytes=self._parking.queued_bytes(),
                spared_bytes=self._mover.spared_bytes,
                replica_bytes=sum(link.memory.replica_bytes for link in self._node.links.values()),
                arrived_bytes=self._node.arrivals.arrived_bytes,
                staging_bytes_used=used,
                staging_bytes_total=total,
                max_scheduler_epoch=ledger.max_epoch,
                data_socket=self._data_socket,
                versions=[pb.VersionId(**key._asdict()) for key in self._node.publisher.known()],
            )

    def _wpg_on_wire(self, wpg: WpgEntry) -> pb.WpgState:
        move_us, moved_bytes = self._mover.progress(wpg.wpg_id)
        return pb.WpgState(
            wpg_id=wpg.wpg_id,
            incarnation=wpg.incarnation,
            residency=ON_WIRE[wpg.residency],
            device_bytes=wpg.device_bytes if wpg.is_on_device else 0,
            host_bytes=wpg.nbytes,
            disk_bytes=wpg.disk_bytes,
            switch_bytes=wpg.switch_bytes or wpg.device_bytes,
            lease_no=wpg.lease_no,
            applied_seq=wpg.applied_seq,
            worked_bytes=self._node.worked.of(wpg.wpg_id),
            move_us=move_us,
            moved_bytes=moved_bytes,
        )

    async def stage(self, messages: AsyncIterator[bytes]) -> service_pb2.StageReply:
        """Take a bundle into staging memory and validate it there."""
        try:
            header = _part(await anext(messages, b""), "header").header
            with self._node.staging.uploading(header) as upload:
                if upload is not None:
                    await self._run(lambda _: upload.reserve())
                    async for message in messages:
                        upload.write(_part(message, "chunk").chunk)
                await self._run(lambda _: None if upload is None else upload.finish())
        except PlexError as error:
            return service_pb2.StageReply(error=wire_errors.to_wire(error))
        return service_pb2.StageReply(nbytes=header.nbytes)

    async def read_staged(self, request: pb.ReadStagedRequest) -> AsyncGenerator[common_pb2.Chunk]:
        """Stream a finished bundle from an offset on."""
        offset, staging, job_id = request.offset, self._node.staging, JobId(request.job_id)
        while data := staging.read(request.staging_id, offset, job_id=job_id):
            yield common_pb2.Chunk(offset=offset, data=data)
            offset += len(data)

    async def drop_staged(self, request: pb.DropStagedRequest) -> pb.DropStagedReply:
        """Drop bundles of a job by id, or all."""
        job_id = JobId(request.job_id)
        freed = self._node.staging.drop(list(request.staging_ids), job_id=job_id)
        return pb.DropStagedReply(freed_bytes=freed)

    def close(self) -> None:
        """Wait for the calls at work."""
        self._threads.shutdown()
        self._saver.close()

    async def _run(
        self,
        work: Callable[[WaitingCaller], T],
        threads: ThreadPoolExecutor | None = None,
        *,
        of: str = "",
    ) -> T:
        """Have a thread work for the caller of a handler, which ends when the caller gives up.

        The bytes that it works on are counted as those `of` a WPG.
        """
        caller = WaitingCaller(partial(self._node.worked.add, WpgId(of)))
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads or self._threads, self._do, work, caller)
        finally:
            caller.leave()

    def _do(self, work: Callable[[WaitingCaller], T], caller: WaitingCaller) -> T:
        """Work, and return once a successor would know of it."""
        done = work(caller)
        self._node.book.settle()
        return done

    def _move(self, request: pb.MoveRequest, caller: WaitingCaller) -> MoveOutcome:
        if request.to not in TARGETS:
            name = common_pb2.Residency.Name(request.to)
            raise bad_request(f"cannot move {request.wpg_id} to {name}; tiers are DEVICE and HOST")
        self._parking.expect(request.next)
        return self._mover.move(
            WpgId(request.wpg_id),
            TARGETS[request.to],
            fence=request.fence,
            move_id=request.move_id,
            caller=caller,
        )

    def _publish(self, request: pb.PublishRequest, caller: WaitingCaller) -> pb.PublishReply:
        wpg_id, key = WpgId(request.wpg_id), VersionId.of(request)
        is_copy = request.HasField("copy_of")
        self._node.wait_until_settled()
        # A repeat waits here for the first, and holds no WPG meanwhile.
        with self._versions.hold(str(key)), self._node.publisher.making(key):
            start_us = self._clock.monotonic_us()
            with nullcontext() if is_copy else self._node.wpg_locks.hold(wpg_id):
                caller.check()
                self._node.admit(request.fence, None if is_copy else wpg_id)
                manifest = self._node.publisher.find(key)
                draft = None
                if manifest is None:
                    draft = (self._draft_copy if is_copy else self._draft)(request, caller)
            copy_us = self._clock.monotonic_us() - start_us
            if draft is not None:
                manifest = self._node.publisher.enter(draft, caller)
        assert manifest is not None, key
        return pb.PublishReply(
            nbytes=manifest.nbytes,
            copy_us=copy_us,
            part=part_name(manifest),
            step=steps(scalars_by_rank([manifest])),
        )

    def _draft(self, request: pb.PublishRequest, caller: WaitingCaller) -> Version:
        """Copy parameters, or all the state that is asked for; the caller holds the lock."""
        wpg_id = WpgId(request.wpg_id)
        self._parking.bring_back(wpg_id)
        taken = snapshot.take(self._node, wpg_id, beside=request.beside)
        kinds = COMPLETE_KINDS if request.complete else PUBLISHED_KINDS
        if request.gradients:
            kinds |= {pieces.GRADIENTS}
        index = [piece for piece in taken.index if piece.kind in kinds]
        if not index and not request.complete:
            raise bad_request(
                f"{request.deployment_id} has no parameters on this node; initialize it first"
            )
        is_boundary = request.complete and not (request.mid_window or request.beside)
        if is_boundary and snapshot.has_gradients(self._node, wpg_id):
            text = f"{wpg_id} has accumulated gradients, which belong to its ranks"
            raise bad_request(f"{text}; step or zero_grad first")
        draft = partial(
            self._node.publisher.draft,
            VersionId.of(request),
            index,
            job_id=self._node.state_of(wpg_id).job_id,
            region=taken.region,
            progress=_progress(taken) if request.complete else None,
            recurs=request.beside,
            tell=caller.tell,
        )
        return self._parking.with_room(draft)

    def _draft_copy(self, request: pb.PublishRequest, caller: WaitingCaller) -> Version:
        """Copy a complete version of other nodes, as one part; one node's comes straight there."""
        with ExitStack() as stack:
            taken = stack.enter_context(self._saver.copied(request.copy_of, caller))
            if (only := taken.only_far) is None:
                stack.enter_context(self._brought(taken))
            draft = partial(
                self._node.publisher.draft,
                VersionId.of(request),
                taken.index,
                job_id=JobId(request.job_id),
                region=taken.region,
                progress=_progress(taken),
                recurs=True,
                bring=None if only is None else only.bring_into,
                tell=caller.tell,
            )
            return self._parking.with_room(draft)

    @contextmanager
    def _brought(self, taken: snapshot.StateSnapshot) -> Iterator[None]:
        """Have all that other nodes hold of a copy, for the block."""
        wanted = pieces.distinct(taken.index)
        far = sum(pieces.nbytes_of(piece) for piece in wanted if piece.region in taken.far)
        with self._parking.booked(far):
            taken.bring(wanted)
            yield

    def _release(self, request: pb.ReleaseVersionRequest) -> None:
        self._node.admit(request.fence)
        self._node.publisher.release(VersionId.of(request))

    def _digest(self, request: pb.DigestRequest, caller: WaitingCaller) -> pb.DigestReply:
        self._node.admit(request.fence)
        with self._saver.copied(request.copies, caller) as state:
            return pb.DigestReply(
                digests=snapshot.digests(state, caller), applied_seq=state.applied_seq
            )


def _progress(taken: snapshot.StateSnapshot) -> Progress:
    scalars = json.dumps({str(rank): dict(known) for rank, known in taken.scalars.items()})
    return Progress(scalars_json=scalars, applied_seq=taken.applied_seq)


def _part(message: bytes, name: str) -> service_pb2.StageRequest:
    """Return a message of an upload, which starts with its header and goes on with chunks."""
    try:
        request = service_pb2.StageRequest.FromString(message)
    except DecodeError as error:
        raise bad_request("an upload message is no StageRequest") from error
    if not request.HasField(name):
        raise bad_request("an upload starts with its header, StageHeader, and then has only chunks")
    return request

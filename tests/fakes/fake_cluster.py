"""Fake nodes for driver tests: agents, state managers, ranks in one process, real gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    operations_pb2,
    rollout_pb2,
    service_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rpc.channels import listen, new_server
from plexsvc.scheduler.orders.reach import GivenUp, Left, Turned
from tests.rigs.keys import KEYS

Hook = Callable[[worker_pb2.ExecuteRequest], Awaitable[worker_pb2.ExecuteReply | None]]
WriteHook = Callable[
    [statemanager_pb2.MaterializeRequest], AsyncIterator[statemanager_pb2.MaterializeReply]
]
ShardsHook = Callable[
    [str, statemanager_pb2.WriteShardsRequest], AsyncIterator[statemanager_pb2.MaterializeReply]
]
MoveHook = Callable[[str, statemanager_pb2.MoveRequest], Awaitable[None]]


def applied(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that succeeded."""
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id, state=operations_pb2.OPERATION_STATE_APPLIED
    )
    return worker_pb2.ExecuteReply(
        result=result, applied_seq=operation.seq, digest=b"\x01", run_us=1000
    )


def failed(operation: operations_pb2.Operation, error: PlexError) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that failed."""
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id,
        state=operations_pb2.OPERATION_STATE_FAILED,
        error=to_wire(error),
    )
    return worker_pb2.ExecuteReply(result=result)


@dataclass(slots=True)
class Behaviour:
    """What the fakes do, and what they saw: one for the whole cluster, changed by tests at will."""

    device_bytes: int = 60
    on_execute: Hook | None = None
    on_describe: Callable[[], Awaitable[None]] | None = None
    spawn_error: PlexError | None = None
    spawn_failures: int = 0
    """Calls to spawn a rank that fail from now on: the agent is away."""
    move_errors: list[PlexError] = field(default_factory=list)
    on_move: MoveHook | None = None
    on_materialize: WriteHook | None = None
    on_shards: ShardsHook | None = None
    written: list[statemanager_pb2.Shard] = field(default_factory=list)
    """What those that make checkpoints were told that others have written."""
    publish_errors: list[PlexError | None] = field(default_factory=list)
    describe_failures: int = 0
    """Calls to a rank for what it is that fail from now on: it is dead."""
    executed: list[tuple[str, str, int]] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    stage_failures: int = 0
    """Payloads that a state manager dies of from now on."""
    stop_failures: int = 0
    """Calls to stop a rank that fail from now on."""
    stopped: list[str] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)
    released: list[tuple[str, int]] = field(default_factory=list)
    release_deadline_s: float = 0
    """How long the caller of the last release would have waited."""
    copied: list[tuple[str, list[str], int]] = field(default_factory=list)
    """Versions that a node copied from others: which node, which others, which version."""
    versions: list[int] = field(default_factory=list)
    staged: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    """Payloads by node and staging id."""
    progress: int = 0
    hangs: set[str] = field(default_factory=set)
    """Methods of state managers that do not answer."""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when they do, after all."""
    worked: Counter[str] = field(default_factory=Counter)
    """Bytes that state managers worked on, by WPG."""
    executing: int = 0
    most_executing: int = 0

    async def may_hang(self, method: str) -> None:
        """Return unless the test wants this method to hang."""
        if method in self.hangs:
            await self.answers.wait()

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation as the test wants it run."""
        operation = request.operation
        kind = operation.WhichOneof("body")
        self.executed.append((request.wpg_id, kind or "", operation.seq))
        self.leases.append(request.fence.lease_no)
        if request.HasField("published"):
            self.versions.append(request.published.version)
        self.executing += 1
        self.most_executing = max(self.executing, self.most_executing)
        try:
            reply = await self.on_execute(request) if self.on_execute is not None else None
        finally:
            self.executing -= 1
        return reply or applied(operation)


class FakeRank(worker_pb2_grpc.WorkerServicer):
    """One rank of a WPG."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def Execute(
        self, request: worker_pb2.ExecuteRequest, context: Any
    ) -> worker_pb2.ExecuteReply:
        return await self._behaviour.execute(request)

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeReply:
        if self._behaviour.on_describe is not None:
            await self._behaviour.on_describe()
        if self._behaviour.describe_failures:
            self._behaviour.describe_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        return worker_pb2.DescribeReply(
            wpg_id=request.wpg_id,
            device_bytes=self._behaviour.device_bytes,
            vocab_size=32,
            max_sequence_length=64,
            progress=self._behaviour.progress,
        )


class FakeStateManager(statemanager_pb2_grpc.StateManagerServicer):
    """Agrees to every move unless told to refuse."""

    def __init__(self, behaviour: Behaviour, *, node_id: str) -> None:
        self._behaviour = behaviour
        self._node_id = node_id
        self._versions: set[VersionId] = set()

    async def Move(
        self, request: statemanager_pb2.MoveRequest, context: Any
    ) -> statemanager_pb2.MoveReply:
        self._behaviour.moves.append((request.wpg_id, request.to))
        if self._behaviour.on_move is not None:
            await self._behaviour.on_move(self._node_id, request)
        if self._behaviour.move_errors:
            error = to_wire(self._behaviour.move_errors.pop(0))
            return statemanager_pb2.MoveReply(error=error)
        return statemanager_pb2.MoveReply(nbytes=60, total_us=10, residency=request.to)

    async def Publish(
        self, request: statemanager_pb2.PublishRequest, context: Any
    ) -> statemanager_pb2.PublishReply:
        await self._behaviour.may_hang("Publish")
        error = self._behaviour.publish_errors.pop(0) if self._behaviour.publish_errors else None
        if error is not None:
            return statemanager_pb2.PublishReply(error=to_wire(error))
        self._versions.add(VersionId.of(request))
        if request.HasField("copy_of"):
            holders = [holder.node_id for holder in request.copy_of.holders]
            self._behaviour.copied.append((self._node_id, holders, request.version))
        steps = sum(kind == "step" for _, kind, _ in self._behaviour.executed)
        return statemanager_pb2.PublishReply(nbytes=5, copy_us=3, step=steps)

    async def GetManifest(
        self, request: statemanager_pb2.GetManifestRequest, context: Any
    ) -> statemanager_pb2.VersionManifest:
        if VersionId.of(request) not in self._versions:
            await context.abort(grpc.StatusCode.NOT_FOUND, "it is not on this node")
        return statemanager_pb2.VersionManifest()

    async def ReleaseVersion(
        self, request: statemanager_pb2.ReleaseVersionRequest, context: Any
    ) -> statemanager_pb2.ReleaseVersionReply:
        self._behaviour.release_deadline_s = context.time_remaining()
        self._behaviour.released.append((request.deployment_id, request.version))
        self._versions.discard(VersionId.of(request))
        return statemanager_pb2.ReleaseVersionReply()

    async def Digest(
        self, request: statemanager_pb2.DigestRequest, context: Any
    ) -> statemanager_pb2.DigestReply:
        await self._behaviour.may_hang("Digest")
        return statemanager_pb2.DigestReply(digests={"param": "abc"})

    async def Materialize(
        self, request_iterator: AsyncIterator[statemanager_pb2.MaterializeRequest], context: Any
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        request = await anext(request_iterator)
        if self._behaviour.on_materialize is not None:
            async for reply in self._behaviour.on_materialize(request):
                yield reply
                if reply.shares:
                    self._behaviour.written.extend((await anext(request_iterator)).written)
            return
        yield statemanager_pb2.MaterializeReply(nbytes=3)
        yield statemanager_pb2.MaterializeReply(nbytes=7, files=["model.safetensors"])

    async def WriteShards(
        self, request: statemanager_pb2.WriteShardsRequest, context: Any
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        assert self._behaviour.on_shards is not None
        async for reply in self._behaviour.on_shards(self._node_id, request):
            yield reply

    async def Forget(
        self, request: statemanager_pb2.ForgetRequest, context: Any
    ) -> statemanager_pb2.ForgetReply:
        self._behaviour.forgotten.append(request.wpg_id)
        return statemanager_pb2.ForgetReply()

    async def Inventory(
        self, request: statemanager_pb2.InventoryRequest, context: Any
    ) -> statemanager_pb2.InventoryReply:
        wpgs = [
            statemanager_pb2.WpgState(wpg_id=wpg_id, worked_bytes=nbytes)
            for wpg_id, nbytes in self._behaviour.worked.items()
        ]
        versions = [statemanager_pb2.VersionId(**one._asdict()) for one in self._versions]
        return statemanager_pb2.InventoryReply(
            host_bytes_used=11, staging_bytes_total=1 << 20, wpgs=wpgs, versions=versions
        )

    async def Stage(
        self, request_iterator: AsyncIterator[service_pb2.StageRequest], context: Any
    ) -> service_pb2.StageReply:
        data, staging_id = b"", b""
        async for request in request_iterator:
            data += request.chunk.data
            staging_id = staging_id or request.header.operation_id
        if self._behaviour.stage_failures:
            self._behaviour.stage_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        self._behaviour.staged[self._node_id, staging_id] = data
        return service_pb2.StageReply(nbytes=len(data))

    async def ReadStaged(
        self, request: statemanager_pb2.ReadStagedRequest, context: Any
    ) -> AsyncIterator[common_pb2.Chunk]:
        data = self._behaviour.staged.get((self._node_id, request.staging_id))
        if data is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is staged under this id")
        yield common_pb2.Chunk(offset=0, data=data)

    async def DropStaged(
        self, request: statemanager_pb2.DropStagedRequest, context: Any
    ) -> statemanager_pb2.DropStagedReply:
        self._behaviour.dropped.extend(request.staging_ids)
        return statemanager_pb2.DropStagedReply()


class FakeAgent(node_pb2_grpc.NodeServicer):
    """A node whose processes are servers in this one."""

    def __init__(self, node_id: str, behaviour: Behaviour, *, kinds: dict[str, int]) -> None:
        self.node_id = node_id
        self.behaviour = behaviour
        self.kinds = kinds
        self.bytes_total = 100
        self.ttls: list[int] = []
        self.port = 0
        self.specs: list[node_pb2.ProcSpec] = []
        self.ranks: dict[str, grpc.aio.Server] = {}
        self.incarnations: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.log: list[node_pb2.NodeEvent] = []
        self.more = asyncio.Event()
        self.state_address = ""
        self.server: grpc.aio.Server | None = None
        self.state_server: grpc.aio.Server | None = None
        self._made: list[grpc.aio.Server] = []
        """All of its servers: a call that starts or stops one may be cut off."""

    def _new_server(self) -> grpc.aio.Server:
        self._made.append(new_server(KEYS))
        return self._made[-1]

    async def start(self, port: int = 0) -> str:
        """Serve the agent and its state manager; return the agent's address."""
        if self.state_server is not None:
            await asyncio.shield(self.state_server.stop(None))
        self.state_server = self._new_server()
        statemanager_pb2_grpc.add_StateManagerServicer_to_server(
            FakeStateManager(self.behaviour, node_id=self.node_id), self.state_server
        )
        self.state_address = listen(self.state_server, "127.0.0.1:0", KEYS, key="fake")
        await self.state_server.start()
        self.server = self._new_server()
        node_pb2_grpc.add_NodeServicer_to_server(self, self.server)
        address = listen(self.server, f"127.0.0.1:{port}", KEYS, key="fake")
        self.port = int(address.rpartition(":")[2])
        await self.server.start()
        return address

    async def stop(self) -> None:
        """Stop everything at once."""
        if self.server is not None:
            await asyncio.shield(
                self.server.stop(None)
            )  # before its ranks: it starts no more of them
        while self._made:
            await asyncio.shield(self._made.pop().stop(None))

    async def restart(self) -> None:
        """Die with all processes and come back at the same address, knowing nothing."""
        await self.stop()
        self.ranks.clear()
        self.log.clear()
        await self.start(self.port)

    async def die(self, proc_id: str, *, signal: int = 9, log_tail: str = "boom") -> None:
        """End a rank as the kernel would, and log it."""
        server = self.ranks.pop(proc_id)
        await asyncio.shield(server.stop(None))
        event = node_pb2.ProcExited(
            proc_id=proc_id,
            signal=signal,
            log_tail=log_tail,
            incarnation=self.incarnations[proc_id],
        )
        self.log.append(node_pb2.NodeEvent(index=len(self.log) + 1, exited=event))
        self.more.set()

    async def Spawn(self, request: node_pb2.SpawnRequest, context: Any) -> node_pb2.SpawnReply:
        if self.behaviour.spawn_failures:
            self.behaviour.spawn_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        self.specs.append(request.spec)
        if self.behaviour.spawn_error is not None:
            return node_pb2.SpawnReply(error=to_wire(self.behaviour.spawn_error))
        older = self.ranks.pop(request.spec.proc_id, None)
        if older is not None:
            await asyncio.shield(older.stop(None))  # whether or not the caller stays
        server = self._new_server()
        worker_pb2_grpc.add_WorkerServicer_to_server(FakeRank(self.behaviour), server)
        address = listen(server, "127.0.0.1:0", KEYS, key="fake")
        await server.start()
        self.ranks[request.spec.proc_id] = server
        self.incarnations[request.spec.proc_id] = request.fence.incarnation
        self.addresses[request.spec.proc_id] = address
        return node_pb2.SpawnReply(pid=1, address=address)

    async def Stop(self, request: node_pb2.StopRequest, context: Any) -> node_pb2.StopReply:
        if self.behaviour.stop_failures:
            self.behaviour.stop_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "out of order")
        self.behaviour.stopped.append(request.proc_id)
        server = self.ranks.pop(request.proc_id, None)
        if server is not None:
            await asyncio.shield(server.stop(None))  # whether or not the caller stays
        return node_pb2.StopReply()

    async def WriteStacks(
        self, request: node_pb2.WriteStacksRequest, context: Any
    ) -> node_pb2.WriteStacksReply:
        if request.proc_id not in self.ranks:
            return node_pb2.WriteStacksReply()
        stacks = f"the stacks of {request.proc_id}"
        return node_pb2.WriteStacksReply(log_path="/its/log", stacks=stacks)

    async def Events(
        self, request: node_pb2.EventsRequest, context: Any
    ) -> AsyncIterator[node_pb2.NodeEvent]:
        index = request.after_index
        while True:
            for event in self.log[index:]:
                index = event.index
                yield event
            self.more.clear()
            await self.more.wait()

    async def Renew(self, request: node_pb2.RenewRequest, context: Any) -> node_pb2.RenewReply:
        self.ttls.append(request.ttl_us)
        return node_pb2.RenewReply(max_scheduler_epoch=request.scheduler_epoch)

    async def Describe(
        self, request: node_pb2.NodeDescribeRequest, context: Any
    ) -> node_pb2.NodeDescription:
        kinds = [kind for kind, count in self.kinds.items() for _ in range(count)]
        return node_pb2.NodeDescription(
            node_id=self.node_id,
            devices=[
                node_pb2.DeviceDescription(
                    index=i,
                    kind=kind,
                    bytes_total=self.bytes_total,
                    cpus=2 if kind == "reward" else 0,
                )
                for i, kind in enumerate(kinds)
            ],
            host_bytes=1000,
            state_manager=self.state_address,
            data_socket=f"/run/{self.node_id}.sock",
            runtime_dir=f"/run/{self.node_id}",
            procs=[
                node_pb2.ProcSummary(
                    proc_id=proc_id,
                    wpg_id=proc_id.rpartition("/")[0],
                    rank=int(proc_id.rpartition("/")[2]),
                    address=self.addresses[proc_id],
                    incarnation=self.incarnations[proc_id],
                )
                for proc_id in self.ranks
            ],
            next_event_index=len(self.log) + 1,
        )


class FakeRolloutManager:
    """Answers what the rollout managers would, from the same behaviour as the ranks."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.cancelled: list[bytes] = []
        self.forgotten: list[str] = []
        self.released: list[bytes] = []
        self.addresses: list[str] = []
        self.replaced: list[tuple[str, int]] = []
        self.located: list[statemanager_pb2.PublishedVersion] = []
        self.replace_errors: list[PlexError] = []
        self.bills: dict[str, service_pb2.JobUse] = {}
        self.given_up: GivenUp
        self.left: Left
        self.turned: Turned
        self.moves: list[tuple[str, rollout_pb2.InstancesMove]] = []
        self.unreached: list[str] = []
        """Instances that do not answer when they are told to sleep."""
        self.used: set[VersionId] = set()
        """Versions that instances serve."""
        self.loaded: dict[bytes, int] = {}
        """What the last pull loaded."""

    def adopt(
        self,
        deployment_id: str,
        *,
        fence: common_pb2.Fence,
        wpg_id: str,
        addresses: Sequence[str],
    ) -> bool:
        del deployment_id, fence, wpg_id, addresses
        return True

    def pulled(self, deployment_id: str, operation_id: bytes) -> int | None:
        del deployment_id
        return self.loaded.get(operation_id)

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        self.addresses.extend(request.instance_addresses)
        if request.operation.WhichOneof("body") == "pull":
            self.used = {VersionId.of(request.published)}
            self.loaded = {request.operation.operation_id: request.published.version}
        return await self._behaviour.execute(request)

    async def cancel(self, request: worker_pb2.CancelRequest) -> None:
        self.cancelled.append(request.operation_id)

    async def replace(self, deployment_id: str, *, index: int, address: str) -> None:
        if self.replace_errors:
            raise self.replace_errors.pop(0)
        self.replaced.append((deployment_id, index))

    async def locate(self, source: statemanager_pb2.PublishedVersion) -> None:
        self.located.append(source)

    async def move(
        self, deployment_id: str, *, fence: common_pb2.Fence, to: rollout_pb2.InstancesMove
    ) -> rollout_pb2.MoveInstancesReply:
        del fence
        self.moves.append((deployment_id, to))
        unreached, self.unreached = self.unreached, []
        return rollout_pb2.MoveInstancesReply(nbytes=100, unreached=unreached)

    def report_to(self, given_up: GivenUp) -> None:
        self.given_up = given_up

    def report_left_to(self, left: Left) -> None:
        self.left = left

    def report_turns_to(self, turned: Turned) -> None:
        self.turned = turned

    def address_of(self, deployment_id: str) -> str:
        del deployment_id
        return "manager:1"

    async def instances(self) -> list[service_pb2.InstanceView]:
        return []

    def bill(self, deployment_id: str, use: service_pb2.JobUse) -> None:
        bill = self.bills.get(deployment_id, service_pb2.JobUse())
        use.pooled_us += bill.pooled_us
        use.cost += bill.cost

    def drain(self, device: str) -> None:
        del device

    def open(self, device: str) -> None:
        del device

    def offer(self, request: service_pb2.LendInstanceRequest) -> None:
        del request

    def versions_in_use(self) -> set[VersionId]:
        return set(self.used)

    async def forget(self, deployment_id: str) -> None:
        self.forgotten.append(deployment_id)
        self.used.clear()

    async def progress(self, deployment_id: str, operation_id: bytes) -> int:
        del deployment_id, operation_id
        return self._behaviour.progress

    async def release(self, deployment_id: str, operation_id: bytes) -> None:
        del deployment_id
        self.released.append(operation_id)


def no_room() -> PlexError:
    """Return what a state manager says when the host has no room."""
    return PlexError(ErrorCode.NO_ROOM, "host memory is full", need=60, free=0)


def staged_payload(nbytes: int) -> common_pb2.Payload:
    """Return a payload whose bytes are to come."""
    payload = common_pb2.Payload()
    payload.staged.nbytes = nbytes
    return payload

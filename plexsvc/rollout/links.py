"""Links to rollout managers, and what the successor of one is told of its deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import grpc
import grpc.aio
import msgspec

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    statemanager_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, not_found
from plexsvc.ids import DeploymentId, VersionId, new_operation_id
from plexsvc.log import Log
from plexsvc.rollout.core.pool import Wanted
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

AWAY: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.OPERATION_TIMEOUT, ErrorCode.INTERNAL})
"""What a call to a manager that is away, or starts, ends with: it is made again."""

GONE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)
"""What a call ends with when the process behind it dies."""

RETRY_US: Final = 100_000
"""Pause before a call to a manager that is not there, or not told yet, is made again."""

TRIES: Final = 600
"""Tries of a change or move of instances while their manager is away: about a minute of pauses."""

SILENT_LOOKS: Final = 15
"""Looks in a row that find no beat before a manager is killed."""

START_LOOKS: Final = 120
"""The same before it says where it serves: one that starts on a busy machine is not silent."""

CALL_S: Final = 30.0
"""Deadline of calls that do no work on tokens or weights."""


NOWHERE: Final = "unix:/dev/null"
"""Where a manager answers that has not started: a call there ends as one to a manager that died."""


class ManagerNodes(Protocol):
    """The nodes, as hosts of managers, and what the next service finds of deployments."""

    epoch: int
    """Of the service."""
    notes: Mapping[str, bytes]
    """What was kept of each deployment, when this service began."""

    async def keep(self, deployment_id: str, note: bytes | None) -> None:
        """Keep what the next service needs to lead a deployment; None: it has ended."""

    def nodes(self) -> Mapping[str, bool]:
        """Return the nodes that are up and reach every instance; whether each takes more work."""

    def places(self, deployment_id: str) -> Sequence[str]:
        """Return the node of each dedicated instance of a deployment."""

    async def start(self, node_id: str, number: int, *, config_json: str) -> str:
        """Return where a manager of a node serves; start one where none lives.

        Raises:
            PlexError: why it did not come up.
        """

    async def kill(self, node_id: str, number: int) -> None:
        """Kill a manager that hangs."""


class ManagerLink:
    """One manager of a node, and its successors there."""

    def __init__(self, node_id: str, number: int, keys: ClusterKeys) -> None:
        self.node_id, self.number, self._keys = node_id, number, keys
        self.address = ""
        self.channels = [open_channel(NOWHERE, keys)]
        """To the processes that it was, the last one is the present."""
        self.incarnation = 0
        self.has_beaten = False
        """Since it was looked at last."""
        self.is_up = False
        """Whether it has beaten since it was killed."""
        self.starts = True
        """Whether its process is looked for or starts, which may take longer than a beat."""
        self.silent_looks = 0
        """In a row, since its process began or beat."""
        self.peer: ManagerLink | None = None
        """The manager of another node that has copies of its token records."""
        self.told = rollout_pb2.ArrangeRequest()
        """What its process was told to lead and copy."""

    def serves_at(self, address: str) -> None:
        """Call the process that serves there from now on; calls under way end with the former."""
        self.starts = False
        if address != self.address:
            self.address, self.silent_looks = address, 0
            self.channels.append(open_channel(address, self._keys))

    async def close(self, *, but: int = 0) -> None:
        """Close its channels but the last ones; calls on them must have ended, as they are cut."""
        while len(self.channels) > but:
            await self.channels.pop(0).close()

    def is_silent(self) -> bool:
        """Look at its beats; return whether it is to be killed."""
        self.silent_looks = 0 if self.has_beaten else self.silent_looks + 1
        self.has_beaten = False
        if self.silent_looks < (START_LOOKS if self.starts else SILENT_LOOKS):
            return False
        log.error("rollout manager hangs and is killed", node=self.node_id, address=self.address)
        self.is_up, self.silent_looks = False, 0
        return True

    @property
    def worker(self) -> worker_pb2_grpc.WorkerAsyncStub:
        """Return the calls for operations."""
        return worker_pb2_grpc.WorkerStub(self.channels[-1])

    @property
    def manager(self) -> rollout_pb2_grpc.RolloutManagerAsyncStub:
        """Return the calls for instances."""
        return rollout_pb2_grpc.RolloutManagerStub(self.channels[-1])


class KeptDeployment(msgspec.Struct, frozen=True):
    """A deployment as the next service finds it."""

    job_id: str
    nodes: list[str]
    """Of its manager, and of the one that has copies of its records."""
    number: int
    initialized: bytes
    pulled: bytes | None
    addresses: list[str]


@dataclass(eq=False, slots=True)
class LedDeployment:
    """A deployment as it is led: what a successor of its manager is told, and how it is called."""

    deployment_id: str
    job_id: str
    link: ManagerLink
    clock: Clock
    is_gone: bool = False
    """Whether it has ended: nothing is ordered again."""
    initialized: worker_pb2.ExecuteRequest | None = None
    addresses: list[str] = field(default_factory=list)
    """Of its dedicated instances."""
    others: dict[str, str] = field(default_factory=dict)
    """Addresses of the others, and the kind of each."""
    leaving: dict[str, dict[str, str | bool]] = field(default_factory=dict)
    """Instances that are to go, and how; one that drains is here until its process has ended."""
    told: set[str] = field(default_factory=set)
    """Those of them that the present manager knows of."""
    fence: common_pb2.Fence = field(default_factory=common_pb2.Fence)
    """Of the newest order that runs alone: instances refuse older ones."""
    pulled: worker_pb2.ExecuteRequest | None = None
    """The pull of the version that is served."""
    versions: set[VersionId] = field(default_factory=set)
    """What instances may serve or load."""
    led_by: int = -1
    """The incarnation of its manager that has it as it is."""
    generates: int = 0
    """How many run."""

    @property
    def seeds(self) -> str:
        """The deployment whose generates it serves, if it has none of its own."""
        return "" if self.initialized is None else self.initialized.deployment.spec.seeds

    @property
    def has_untold(self) -> bool:
        """Whether its manager does not know of all instances that are to go."""
        return self.leaving.keys() > self.told

    @property
    def wpg_id(self) -> str:
        """Its WPG; empty before it is initialised."""
        return "" if self.initialized is None else self.initialized.wpg_id

    async def add(self, address: str, *, kind: str) -> None:
        """Take one more instance.

        Raises:
            PlexError: `unavailable` when it does not answer, or its manager does not.
        """
        await self.change(address, joins_as=kind)
        self.others[address] = kind

    async def drain(self, address: str) -> None:
        """Have an instance's samples go on elsewhere, and let it go then."""
        self.leaving[address] = {"drains": True}
        await self.tell_again()

    async def drop(self, address: str, *, because: str) -> None:
        """Forget an instance whose process has ended."""
        self.others.pop(address, None)
        self.leaving[address] = {"ended": because}
        self.told.discard(address)
        await self.tell_again()

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Return the answer to an order, given again while its manager is away or not told yet.

        What moves it to other instances waits until its manager has those that it had.

        Raises:
            PlexError: `not_found` once the deployment is gone.
        """
        moves = request.operation.WhichOneof("body") == "initialize" and self.initialized
        while True:
            if moves and self.led_by != self.link.incarnation and not self.is_gone:
                await self.clock.sleep(RETRY_US)
                continue
            try:
                reply = await self.link.worker.Execute(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    raise error_from(error) from error
            else:
                is_refused = reply.result.state == operations_pb2.OPERATION_STATE_REFUSED
                if not (is_refused and reply.result.error.code == ErrorCode.UNAVAILABLE.value):
                    return reply  # else it came before its manager was told, or as it stopped
            if self.is_gone:
                raise no_deployment(self.deployment_id)
            await self.clock.sleep(RETRY_US)

    async def move(self, to: rollout_pb2.InstancesMove) -> rollout_pb2.MoveInstancesReply:
        """Have all instances sleep or wake, by the successor if their manager dies.

        Raises:
            PlexError: what an instance refused; `unavailable` after `TRIES`.
        """
        request = rollout_pb2.MoveInstancesRequest(
            fence=self.fence, wpg_id=self.wpg_id, deployment_id=self.deployment_id, to=to
        )
        for last in range(TRIES):
            try:
                return await self.link.manager.MoveInstances(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE or last + 1 == TRIES:
                    raise error_from(error) from error
            await self.clock.sleep(RETRY_US)
        raise AssertionError(TRIES)

    async def cancel(self, operation_id: bytes = b"") -> None:
        """Drop the record of an operation; without one, forget the deployment.

        Raises:
            PlexError: `stale_fence`; `unavailable` when the manager is not there.
        """
        request = worker_pb2.CancelRequest(
            operation_id=operation_id, wpg_id=self.wpg_id, fence=self.fence
        )
        await cancel(self.link, request)

    async def insist(
        self, address: str, **change: str | int | bool | statemanager_pb2.PublishedVersion
    ) -> None:
        """Tell the manager of an instance until it has it, or a successor is told of all of them.

        Raises:
            PlexError: what it refused; `unavailable` after `TRIES`.
        """
        incarnation = self.link.incarnation
        for last in range(TRIES):
            try:
                await self.change(address, **change)
            except PlexError as error:
                if error.code not in AWAY or last + 1 == TRIES or self.is_gone:
                    raise
            else:
                return
            await self.clock.sleep(RETRY_US)
            if self.link.incarnation != incarnation:
                return

    async def change(
        self, address: str, **change: str | int | bool | statemanager_pb2.PublishedVersion
    ) -> None:
        """Take an instance, or let one go.

        Raises:
            PlexError: what the manager refused, or `unavailable`.
        """
        request = rollout_pb2.ChangeInstanceRequest(
            fence=self.fence,
            wpg_id=self.wpg_id,
            deployment_id=self.deployment_id,
            address=address,
            **change,  # type: ignore[arg-type]  # one of the oneof's fields
        )
        try:
            await self.link.manager.ChangeInstance(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error

    def wants(self, kind: str) -> Wanted:
        """Return how many instances of a kind it asks for."""
        assert self.initialized is not None, self
        given, deployment_id = self.initialized.deployment, DeploymentId(self.deployment_id)
        asked = next((one for one in given.spec.instances if one.kind == kind), None)
        if asked is None:
            return Wanted(deployment_id=deployment_id, most=0)
        return Wanted(
            deployment_id=deployment_id,
            least=asked.least,
            most=asked.most,
            price=asked.price if asked.HasField("price") else None,
            model=given.spec.model,
            tenant=given.tenant,
        )

    async def tell_again(self) -> None:
        """Tell the manager of instances that are to go; those it is not told of stay noted."""
        for address, change in list(self.leaving.items()):
            if address in self.told:
                continue
            try:
                await self.change(address, **change)
            except PlexError as error:
                if error.code in AWAY:
                    log.warning("manager not told of an instance yet", address=address, error=error)
                    return
                log.warning("manager refused to let an instance go", address=address, error=error)
            if self.leaving.get(address) is not change:
                continue  # its process ended meanwhile
            if "drains" in change:
                self.told.add(address)
            else:
                del self.leaving[address]


async def cancel(link: ManagerLink, request: worker_pb2.CancelRequest) -> None:
    """End an operation early, drop its record, or forget a deployment.

    Raises:
        PlexError: `stale_fence`; `unavailable` when the manager is not there.
    """
    try:
        await link.worker.Cancel(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from error


def restoring(deployment: LedDeployment) -> worker_pb2.ExecuteRequest:
    """Return what initialises a deployment with the instances and the version that it has now."""
    assert deployment.initialized is not None, deployment
    request = worker_pb2.ExecuteRequest()
    request.CopyFrom(deployment.initialized)
    request.operation.operation_id = new_operation_id()
    request.fence.CopyFrom(deployment.fence)
    request.instance_addresses[:] = deployment.addresses
    if deployment.pulled is not None:
        request.published.CopyFrom(deployment.pulled.published)
        request.pulled_seq = deployment.pulled.operation.seq
    return request


def note_of(deployment: LedDeployment) -> bytes:
    """Return what the next service needs to lead a deployment."""
    assert deployment.initialized is not None, deployment
    pulled, link = deployment.pulled, deployment.link
    kept = KeptDeployment(
        job_id=deployment.job_id,
        nodes=[one.node_id for one in (link, link.peer) if one is not None],
        number=link.number,
        initialized=deployment.initialized.SerializeToString(),
        pulled=None if pulled is None else pulled.SerializeToString(),
        addresses=deployment.addresses,
    )
    return msgspec.json.encode(kept)


def no_deployment(deployment_id: str) -> PlexError:
    """Return the error about a deployment that is not led any more."""
    return not_found(f"rollout deployment {deployment_id} is gone")

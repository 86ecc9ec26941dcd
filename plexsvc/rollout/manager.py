"""A rollout manager: the `Worker` service of rollout deployments, and what leads it.

Theory of operation. A deployment is known from its `Initialize`, which brings the addresses of its
instances. An operation runs once (`executions`); every `Execute` of its id waits for that or is
answered from its record. A generate's tokens go into its token record, which any number of
`StreamFrames` read; the record is kept until it is acknowledged (`Cancel` of a finished operation,
or of a WPG) or newer ones need its room. `run` must be running: all tasks live in it. A manager
that follows another knows no deployment; until a deployment is initialised again its orders are
refused with `unavailable`, and `managers` repeats them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from plexclient.wire.v1 import operations_pb2, rollout_pb2, worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, bad_request, unavailable
from plexsvc.fencing import Gate
from plexsvc.ids import OperationId, show
from plexsvc.rollout import operations
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.copies import Copier
from plexsvc.rollout.core.instances import RESERVED, Phase
from plexsvc.rollout.deployment import RolloutDeployment
from plexsvc.rollout.executions import Executions
from plexsvc.rollout.operations import REFUSED, failure, success
from plexsvc.rollout.store import RecordStore
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.slots import Limit, Slots

BEAT_S: Final = 1.0
"""How often who leads a manager hears from it."""

GENERATE_LOOKS: Final = 50
GENERATE_LOOK_US: Final = 50_000
"""How often, and how far apart, a seed looks for its generate; one that does not come is over."""


class RolloutManager:
    """Runs operations of rollout deployments."""

    def __init__(self, config: ManagerConfig, clock: Clock, keys: ClusterKeys) -> None:
        self._config, self._clock, self._keys = config, clock, keys
        self._deployments: dict[str, RolloutDeployment] = {}
        self._copier = Copier(clock, keys, leads=lambda: list(self._deployments))
        self._records = RecordStore(config, clock, watcher=self._copier)
        self._executions = Executions(config, clock, self._records, self._deployments, self._run)
        self._gates: dict[str, Gate] = {}
        self._leader = Gate(is_shared=True)
        self._incarnation = 1 + secrets.randbits(62)
        self._news: asyncio.Queue[rollout_pb2.ManagerNews] = asyncio.Queue()
        self._lost: dict[str, rollout_pb2.InstanceGone] = {}
        """Instances that are gone, by address, until their end or a successor is ordered."""
        self._slots = Slots(
            Limit(total=config.max_streams, what="streams", key="rollout.max_streams")
        )

    async def run(self) -> None:
        """Host all work of this manager until cancelled; cancellation ends it."""
        async with asyncio.TaskGroup() as group:
            self._executions.group = group
            copying = group.create_task(self._copier.run())
            try:
                await asyncio.Event().wait()
            finally:
                self._executions.group = None
                copying.cancel()
                for deployment in self._deployments.values():
                    await deployment.close()

    # ---- operations

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation, or wait for or repeat the answer of one that was run.

        Errors are in the reply's result; a refused order leaves no record.
        """
        operation = request.operation
        body, what = operation.WhichOneof("body"), show(operation.operation_id)
        try:
            if body != "initialize":
                self._deployment(operation.deployment_id)
            gate, what = self._gate(request.wpg_id), f"{what} on {request.wpg_id}"
            execution = self._executions.get(operation.operation_id)
            if execution is not None:
                gate.admit_leader(request.fence, what=what)
            else:
                admit = gate.admit_shared if body == "generate" else gate.admit_exclusive
                admit(request.fence, what=what)
                execution = self._executions.begin(request)
        except PlexError as error:
            return failure(operation, error, state=REFUSED)
        reply = await asyncio.shield(execution.answer)
        deployment = self._deployments.get(operation.deployment_id)
        if body == "generate" and deployment is not None:
            reply.asleep[:] = operations.asleep(deployment)
            await self._copier.caught_up(operation.operation_id)
        return reply

    async def _run(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Do what an operation asks for."""
        operation = request.operation
        body, deployment_id = operation.WhichOneof("body"), operation.deployment_id
        if body == "initialize":
            return await self._initialize(request)
        deployment = self._deployment(deployment_id)
        match body:
            case "pull":
                return await operations.pull(deployment, request)
            case "generate":
                return await operations.generate(deployment, request, self._records)
            case "seed":
                return await self._seed(deployment, request)
            case "noop":
                return success(operation)
            case _:
                raise bad_request(
                    f"{show(operation.operation_id)}: a rollout deployment runs generate and sync, "
                    f"not {body}"
                )

    async def _initialize(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Connect to the instances; a deployment that is known goes on with its new ones."""
        self._leader.admit_leader(request.fence, what="a deployment's instances")
        deployment_id, group = request.operation.deployment_id, self._executions.group
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            assert group is not None
            self._records.take_copies(deployment_id)
            deployment = RolloutDeployment(
                deployment_id,
                wpg_id=request.wpg_id,
                config=self._config,
                clock=self._clock,
                group=group,
                keys=self._keys,
                tell=self._tell,
            )
        reply = await operations.initialize(deployment, request)
        if deployment.wpg_id != request.wpg_id:
            self._gates.pop(deployment.wpg_id, None)
            deployment.wpg_id = request.wpg_id
        if deployment_id not in self._deployments:
            self._deployments[deployment_id] = deployment
            self._copier.begins(deployment_id)
        # A service that was killed had no note of a newer pull, whose repeat is answered from here.
        is_newest = request.pulled_seq >= deployment.exclusive_seq
        if request.HasField("published") and is_newest:  # nothing is sampled from another from here
            await operations.resume(deployment, request.published)
        return reply

    async def _seed(
        self, own: RolloutDeployment, request: worker_pb2.ExecuteRequest
    ) -> worker_pb2.ExecuteReply:
        """Serve a generate with engines on training devices; nothing is to do where it is over."""
        generate_id = OperationId(request.operation.after[0])
        for _ in range(GENERATE_LOOKS):
            served = self._deployments.get(own.seeds)
            if served is not None and generate_id in served.generates:
                return await operations.seed(own, request, served)
            found = self._executions.get(generate_id)
            if found is not None and found.answer.done():
                break
            await self._clock.sleep(GENERATE_LOOK_US)
        return success(request.operation)

    async def cancel(self, request: worker_pb2.CancelRequest) -> worker_pb2.CancelReply:
        """End a running operation with `cancelled`, or release the record of a finished one.

        One that is not known here ends so as soon as it comes: the manager before had it. Without
        an operation id the whole WPG is forgotten.

        Raises:
            PlexError: `stale_fence`.
        """
        wpg_id = request.wpg_id
        self._gate(wpg_id).admit_leader(request.fence, what="cancel")
        if request.operation_id:
            self._executions.cancel(request.operation_id)
            return worker_pb2.CancelReply()
        for deployment in [one for one in self._deployments.values() if one.wpg_id == wpg_id]:
            await self._executions.forget(deployment.deployment_id)
            self._deployments.pop(deployment.deployment_id, None)
            self._lost = {one: gone for one, gone in self._lost.items() if gone.wpg_id != wpg_id}
            self._gates.pop(wpg_id, None)
            await deployment.close()
        return worker_pb2.CancelReply()

    # ---- streams of tokens

    async def sample(
        self, request: operations_pb2.Operation
    ) -> AsyncGenerator[operations_pb2.GenerateFrame | bytes]:
        """Generate beside the order of operations; it ends when its reader leaves.

        The first frame has the prompts as token ids, the last one the result. Its token record is
        one like others, and goes with it.

        Raises:
            PlexError: `unavailable` without a deployment, `not_found` without weights,
                `queue_full`, `bad_request`; `operation_timeout` when no token comes for
                `rollout.stall_us`.
        """
        deployment = self._deployment(request.deployment_id)
        if deployment.core.is_shared:
            raise bad_request(
                f"{request.deployment_id} shares its devices in time, so it samples in the "
                "order of operations alone: use `generate`, or deploy it with `shared=False`"
            )
        with self._slots.hold(request.tenant):
            await operations.prepare(deployment, request)
            if request.generate.encodes_only:
                yield operations_pb2.GenerateFrame(prompts=request.generate.prompts)
                return
            async with aclosing(self._sampled(request, deployment)) as frames:
                async for frame in frames:
                    yield frame

    async def _sampled(
        self, operation: operations_pb2.Operation, deployment: RolloutDeployment
    ) -> AsyncGenerator[operations_pb2.GenerateFrame | bytes]:
        """Yield the frames of a generate that lives as long as they are read."""
        operation_id, stall_us = operation.operation_id, self._config.stall_us
        if self._executions.get(operation_id) is not None:
            raise bad_request(f"{show(operation_id)} is known; a sample takes an id of its own")
        order = worker_pb2.ExecuteRequest(
            fence=deployment.fence, wpg_id=deployment.wpg_id, operation=operation
        )
        execution = self._executions.begin(order)
        try:
            record = await self._records.wait_for(operation_id)
            yield operations_pb2.GenerateFrame(prompts=operation.generate.prompts)
            async with aclosing(record.read(0)) as frames:
                while True:
                    async with asyncio.timeout(stall_us / 1e6):
                        frame = await anext(frames, None)
                    if frame is None:
                        return
                    yield frame
        except TimeoutError as error:
            raise PlexError(
                ErrorCode.OPERATION_TIMEOUT,
                f"{show(operation_id)} got no token for {stall_us} us (rollout.stall_us); its "
                "instances are busy or lost: try again later",
            ) from error
        finally:
            execution.stop()
            execution.answer.add_done_callback(lambda _: self._executions.cancel(operation_id))

    async def stream_frames(self, request: worker_pb2.StreamFramesRequest) -> AsyncGenerator[bytes]:
        """Yield the frames after `after_cursor`, then live, up to the one with the result.

        They are serialised. Waits for an operation that has not started; for the record of one
        that was answered, only as long as a successor takes to have its copies.

        Raises:
            PlexError: `result_gone`, `not_found`, `queue_full`.
        """
        with self._slots.hold(request.tenant):
            record = await self._records.wait_for(
                request.operation_id,
                deployment_id=request.deployment_id,
                is_answered=request.is_answered,
            )
            async for frame in record.read(request.after_cursor):
                yield frame

    # ---- instances

    async def change_instance(
        self, request: rollout_pb2.ChangeInstanceRequest
    ) -> rollout_pb2.ChangeInstanceReply:
        """Take an instance, let one go, or learn where the version lies that they serve.

        Raises:
            PlexError: `stale_fence`; `unavailable` when a new instance does not answer, or the
                deployment is not known yet.
        """
        self._gate(request.wpg_id).admit_leader(request.fence, what="a change of instances")
        deployment, address = self._deployment(request.deployment_id), request.address
        match request.WhichOneof("change"):
            case "replaces":
                self._lost.pop(await deployment.replace(request.replaces, address), None)
            case "joins_as":
                await deployment.add(address, kind=request.joins_as)
            case "drains":
                deployment.drain(address)
            case "ended":
                self._lost.pop(address, None)
                deployment.drop(address, because=request.ended)
            case "located":
                deployment.locate(request.located)
            case _:
                raise bad_request(f"no change of instance {address} was named")
        return rollout_pb2.ChangeInstanceReply()

    async def move_instances(
        self, request: rollout_pb2.MoveInstancesRequest
    ) -> rollout_pb2.MoveInstancesReply:
        """Have all instances of a deployment sleep, or wake; a pull that follows wakes them itself.

        Raises:
            PlexError: `stale_fence`; `unavailable` when the deployment is not known yet; what an
                instance refused to sleep with.
        """
        self._gate(request.wpg_id).admit_exclusive(request.fence, what="a move of instances")
        deployment = self._deployment(request.deployment_id)
        deployment.fence.CopyFrom(request.fence)
        if request.to == rollout_pb2.INSTANCES_MOVE_SLEEP:
            return await operations.sleep(deployment)
        if request.to == rollout_pb2.INSTANCES_MOVE_AWAIT_PULL:
            return rollout_pb2.MoveInstancesReply()
        return await operations.wake(deployment)

    # ---- copies of token records

    async def arrange(self, request: rollout_pb2.ArrangeRequest) -> rollout_pb2.ArrangeReply:
        """Copy records to a manager of another node; drop those of deployments that are gone.

        Raises:
            PlexError: `stale_fence`.
        """
        self._leader.admit_leader(request.fence, what="what a manager leads")
        self._records.keep_only({*request.leads, *self._deployments})
        self._records.copies.keep_only([*request.leads, *request.others])  # some are not taken yet
        self._copier.aim(request.copies_to, request.number)
        return rollout_pb2.ArrangeReply()

    async def keep_copies(
        self, request: rollout_pb2.KeepCopiesRequest
    ) -> rollout_pb2.KeepCopiesReply:
        """Add to the copies of another manager's records.

        Raises:
            PlexError: `bad_request` for a copy that would have a hole.
        """
        refused = self._records.copies.keep(request, leads=self._deployments)
        return rollout_pb2.KeepCopiesReply(refused=refused)

    # ---- what is told

    async def describe(self, request: worker_pb2.DescribeRequest) -> worker_pb2.DescribeReply:
        """Return the facts of a WPG's instances; `initialized` is false for an unknown one."""
        reply = worker_pb2.DescribeReply(wpg_id=request.wpg_id)
        for deployment in self._deployments.values():
            if deployment.wpg_id == request.wpg_id:
                reply.CopyFrom(deployment.describe)
                reply.applied_seq = deployment.applied_seq
        return reply

    async def follow(
        self, request: rollout_pb2.FollowRequest
    ) -> AsyncGenerator[rollout_pb2.ManagerNews]:
        """Yield a beat every `BEAT_S`, what becomes of instances, and what turns took of them.

        Until the caller leaves. It begins with instances that are gone: the line of who followed
        before may have broken on the news.
        """
        del request
        for gone in list(self._lost.values()):
            yield rollout_pb2.ManagerNews(incarnation=self._incarnation, gone=gone)
        news = rollout_pb2.ManagerNews()
        while True:
            news.incarnation = self._incarnation
            yield news
            try:
                news = await asyncio.wait_for(self._news.get(), BEAT_S)
            except TimeoutError:
                for one in self._deployments.values():
                    if device_us := one.take_turned_us():
                        taken = rollout_pb2.TurnsTaken(wpg_id=one.wpg_id, device_us=device_us)
                        self._news.put_nowait(rollout_pb2.ManagerNews(turns=taken))
                news = rollout_pb2.ManagerNews()

    def _tell(self, news: rollout_pb2.ManagerNews) -> None:
        """Say what became of an instance, and keep that it is gone."""
        if news.HasField("gone"):
            self._lost[news.gone.address] = news.gone
        self._news.put_nowait(news)

    async def inspect(self, request: rollout_pb2.InspectRequest) -> rollout_pb2.ManagerFacts:
        """Return every instance, and a count that grows while an operation gets on."""
        facts = rollout_pb2.ManagerFacts(progress=self.progress(request.operation_id))
        for deployment in self._deployments.values():
            lends_to = self._deployments.get(deployment.seeds)
            window = {} if lends_to is None else lends_to.views()
            for address, view in deployment.views().items():
                if view.kind == RESERVED.name:
                    continue  # told of the deployment whose device it has
                if lends_to is not None:
                    if view.phase == Phase.SERVING:  # itself it gets no samples
                        view.phase = "awake"
                    view.CopyFrom(window.get(address, view))
                    view.kind, view.deployment_id = RESERVED.name, deployment.deployment_id
                view.device = address
                facts.instances.append(view)
        return facts

    def progress(self, operation_id: bytes) -> int:
        """Return a count that grows while an operation gets on: tokens recorded, weights loaded."""
        record, execution = self._records.get(operation_id), self._executions.get(operation_id)
        if record is not None:
            return record.generated
        deployment = self._deployments.get(execution.deployment_id) if execution else None
        if deployment is not None:
            deployment = self._deployments.get(deployment.seeds, deployment)
        return 0 if deployment is None else deployment.progress

    # ---- what is known

    def _gate(self, wpg_id: str) -> Gate:
        return self._gates.setdefault(wpg_id, Gate())

    def _deployment(self, deployment_id: str) -> RolloutDeployment:
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            raise unavailable(f"rollout deployment {deployment_id} is not initialised here yet")
        return deployment

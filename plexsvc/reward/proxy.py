"""Reward proxy: takes samples, has workers score them as its core decides, streams scores back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request, queue_full, unavailable
from plexsvc.fencing import Gate
from plexsvc.ids import JobId, TenantId
from plexsvc.log import Log
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.machine import RewardCore
from plexsvc.reward.core.vocabulary import (
    AnswerRequest,
    BatchId,
    BatchLeft,
    Order,
    PlacesKnown,
    ProgramFailed,
    RememberBatch,
    RequestId,
    Resource,
    RewardEvent,
    RunStage,
    SampleRefused,
    SamplesArrived,
    SampleScored,
    SampleTimedOut,
    StagePassed,
    StartWorker,
    StopWorker,
    TimePassed,
    Verdict,
    WorkerId,
    WorkerLost,
    WorkerReady,
)
from plexsvc.reward.hosts import HostedWorkers, resource_of
from plexsvc.reward.messages import Ready, StageDone, Task
from plexsvc.reward.plans import PlannerLine
from plexsvc.reward.programs.adding import from_wire
from plexsvc.reward.programs.base import Program, cut
from plexsvc.reward.programs.library import Library
from plexsvc.reward.programs.own import encode, program_of
from plexsvc.reward.programs.registry import check_settings
from plexsvc.reward.record import BatchRecord, size_of
from plexsvc.reward.shelf import SMALL_BYTES, Files, Shelf, Spilled, TenantShelf
from plexsvc.reward.view import program_view, rewards_view
from plexsvc.reward.workers import Heard, Workers
from plexsvc.rpc.loops import FullPasses

log = Log(__name__)

TICK_US: Final = 100_000
"""How often deadlines are looked at."""

BATCH_ID_BYTES: Final = 16

OUTPUT_LEFT_OUT: Final = "left out: its tenant's answers fill reward.max_bytes"


class RewardProxy:
    """The driver of one `RewardCore`. Lives on one event loop; `run` must run while it serves."""

    def __init__(
        self,
        config: RewardServiceConfig,
        clock: Clock,
        core: RewardCore,
        launch: Callable[[Heard], AbstractAsyncContextManager[Workers]],
        library: Library,
        shelf: Shelf,
    ) -> None:
        self.core = core
        self._shelf = shelf
        self.rooms: dict[TenantId, TenantShelf] = {}
        """Of tenants with batches."""
        self._tasks = asyncio.TaskGroup()
        """What waits for the disk."""
        self._library = library
        self._changing = asyncio.Lock()
        self.records: dict[BatchId, BatchRecord] = {}
        self.sandbox = "not known yet: no worker has started"
        self._config = config
        self._clock = clock
        self._launch = launch
        self._workers: Workers | None = None
        self._gate = Gate()
        self._rooms: Mapping[str, Resource] | None = None
        """What nodes have for workers, those among them that take none now."""
        self.running: dict[WorkerId, RequestId] = {}
        self._warm: dict[str, None] = {}
        self._facts: list[RewardEvent] = []
        self.planner: PlannerLine | None = None
        self._has_begun = False
        self._failure: BaseException | None = None
        self._full_passes = FullPasses()

    @property
    def worker_pids(self) -> Mapping[WorkerId, int]:
        """The processes of the workers that live."""
        return self._workers.pids if self._workers is not None else {}

    async def run(self) -> None:
        """Keep workers and deadlines until cancelled."""
        async with self._tasks, self._launch(self._heard) as self._workers:
            while True:
                self._tick()
                await self._clock.sleep(TICK_US)

    async def use_hosts(self, request: pb.UseHostsRequest) -> pb.UseHostsReply:
        """Have workers on the nodes that the scheduler names and no others.

        Raises:
            PlexError: `stale_fence`; `bad_request` where workers are this process's children.
        """
        self._gate.admit_leader(request.fence, what="hosts of reward workers")
        if not isinstance(self._workers, HostedWorkers):
            raise bad_request(
                "this proxy's workers are its own processes; start it with on_nodes = true"
            )
        self._rooms = {facts.node_id: resource_of(facts) for facts in request.hosts}
        self._workers.use(request.hosts)
        return pb.UseHostsReply()

    def know_places(self, places: Mapping[str, Resource]) -> None:
        """Tell the core where workers can be started now."""
        self.post(PlacesKnown(at_us=self._clock.monotonic_us(), places=places))

    async def score(self, request: pb.ScoreRequest) -> AsyncGenerator[bytes]:
        """Yield the answer to each sample of a request as it is there, serialised.

        Raises:
            PlexError: `bad_request`, `not_found` for a program that is not there, `queue_full`.
        """
        batch_id = BatchId(TenantId(request.tenant), JobId(request.job_id), request.batch_id)
        record = self._admit(batch_id, request)
        record.readers += 1
        indices = {sample.index for sample in request.samples}
        queue = record.subscribe(indices)
        try:
            for _ in indices:
                reply = await queue.get()
                if (spilled := record.spilled.get(reply.index)) is not None:
                    whole, reply = reply, pb.ScoreReply()
                    reply.CopyFrom(whole)
                    reply.files.update(await self._shelf.get(spilled))
                yield reply.SerializeToString()
        finally:
            record.unsubscribe(queue, indices)
            record.readers -= 1
            record.quiet_since_us = self._clock.monotonic_us()

    async def get_rewards(self, request: pb.GetRewardsRequest) -> pb.RewardsReply:
        """Return programs, pool and batches; only an operator sees batches of other tenants."""
        now_us = self._clock.monotonic_us()
        own = self._library.of(TenantId(request.tenant))
        return rewards_view(self.core, request, own=own, sandbox=self.sandbox, now_us=now_us)

    async def add_program(self, request: pb.AddProgramRequest) -> pb.RewardProgram:
        """Keep a program of a tenant's own; return it when it is on disk.

        Raises:
            PlexError: `bad_request`, `payload_too_large`.
        """
        definition = from_wire(request, max_memory_bytes=self._config.max_stage_bytes)
        self._check_workers(program_of(encode(definition)))
        async with self._changing:
            add = self._library.add
            return program_view(await asyncio.to_thread(add, TenantId(request.tenant), definition))

    async def remove_program(self, request: pb.RemoveProgramRequest) -> pb.RewardProgram:
        """Forget a program of a tenant's own; batches under way keep it.

        Raises:
            PlexError: `not_found`.
        """
        async with self._changing:
            remove = self._library.remove
            return program_view(
                await asyncio.to_thread(remove, TenantId(request.tenant), request.name)
            )

    def _admit(self, batch_id: BatchId, request: pb.ScoreRequest) -> BatchRecord:
        """Return the record of a batch with the samples of a request in it, or change nothing."""
        record = self.records.get(batch_id) or self._new_record(request)
        program, asked = record.program, (request.program, request.settings)
        if (program.name, record.settings) != asked or request.version not in {"", program.version}:
            raise bad_request(
                f"the batch is scored by {program.name} {program.version} with settings "
                f"{record.settings!r}; a batch has one program and one set of settings"
            )
        new = record.new_ones(request.samples)
        if not new and batch_id in self.records:
            return record
        self._check_workers(record.program)
        self._check_room(batch_id, record, new)
        if batch_id not in self.core.batches and self.planner is not None:
            self.planner.wake()
        if batch_id not in self.records:
            self.records[batch_id], self.rooms[batch_id.tenant] = record, record.room
            record.enter()
        record.add(new)
        record.size = max(record.size, request.batch_size, len(record.pending))
        # Workers, those that start later too, import what the programs in use need.
        missing = [module for module in record.program.imports if module not in self._warm]
        if missing:
            assert self._workers is not None, "samples come once it runs"
            self._warm |= dict.fromkeys(missing)
            self._workers.warm(missing)
        self.post(
            SamplesArrived(
                at_us=self._clock.monotonic_us(),
                batch=batch_id,
                program=record.program.spec,
                size=record.size,
                samples=tuple(sample.index for sample in new),
            )
        )
        return record

    def _new_record(self, request: pb.ScoreRequest) -> BatchRecord:
        """Return an empty record for the batch of a request.

        Raises:
            PlexError: `bad_request`, `not_found`.
        """
        if len(request.batch_id) != BATCH_ID_BYTES or not request.job_id:
            raise bad_request(
                f"score needs a job_id and a batch_id of {BATCH_ID_BYTES} bytes, not "
                f"{len(request.batch_id)}"
            )
        tenant = TenantId(request.tenant)
        program = self._library.find(tenant, request.program, request.version)
        try:
            settings: Any = json.loads(request.settings or "{}")
        except (ValueError, RecursionError) as error:
            raise bad_request(f"settings are not JSON: {error}") from error
        if not isinstance(settings, dict):
            raise bad_request("settings must be a JSON object")
        check_settings(program, settings)
        return BatchRecord(
            program=program,
            settings=request.settings,
            room=self.rooms.get(tenant) or TenantShelf(tenant),
            place=self._shelf.place(),
        )

    def _check_workers(self, program: Program) -> None:
        """Refuse a program that would wait for ever.

        Raises:
            PlexError: `bad_request`, naming the stage and what it asks for; `unavailable` while
                the scheduler has not said which nodes there are.
        """
        found = self._all_rooms()
        for stage in program.stages:
            if not any(stage.holds.fits(room) for room in found):
                rooms = "; ".join(str(room) for room in found)
                raise bad_request(
                    f"stage {stage.name} of program {program.name} needs a worker with "
                    f"{stage.holds}; nodes have {rooms or 'nothing'} for workers"
                )

    def _all_rooms(self) -> list[Resource]:
        if not isinstance(self._workers, HostedWorkers):
            return [place.room for place in self.core.crew.places.values()]
        if self._rooms is None:
            raise unavailable(
                "the scheduler has not said yet which nodes run reward workers; ask again"
            )
        return list(self._rooms.values())

    def _check_room(
        self, batch_id: BatchId, record: BatchRecord, new: list[pb.ScoreSample]
    ) -> None:
        tenant = batch_id.tenant
        own = [record for batch, record in self.records.items() if batch.tenant == tenant]
        batches = len(own) + (batch_id not in self.records)
        samples = sum(len(record.pending) + len(record.replies) for record in own) + len(new)
        nbytes = record.room.nbytes + sum(map(size_of, new))
        nbytes += record.own_bytes() if batch_id not in self.records else 0
        for what, found, key in (
            ("batches", batches, "max_batches"),
            ("samples", samples, "max_samples"),
            ("bytes", nbytes, "max_bytes"),
        ):
            limit = getattr(self._config, key)
            if found > limit:
                raise queue_full(
                    f"tenant {tenant!r} would have {found} {what} to score; the limit is {limit} "
                    f"(reward.{key}): score fewer at once, or again when some are done"
                )

    def post(self, fact: RewardEvent) -> None:
        """Hand a fact to the core and do what it orders; facts that follow wait their turn."""
        self._facts.append(fact)
        if len(self._facts) > 1:
            return
        try:
            while self._facts:
                for order in self.core.handle(self._facts[0]):
                    self._perform(order)
                self._facts.pop(0)
        except BaseException as error:
            self._failure = error  # a half-done fact: `run` ends, and with it the process
            raise

    def _perform(self, order: Order) -> None:
        assert self._workers is not None, "samples come once it runs"
        match order:
            case StartWorker(worker=worker, place=place, resource=held):
                warm = list(self._warm)
                self._workers.start(worker, place=place, modules=warm, gpus=held.gpus)
            case StopWorker(worker=worker):
                self.running.pop(worker, None)
                self._workers.stop(worker)
            case RunStage(worker=worker, request=request):
                self.running[worker] = request
                files = self.records[request.batch].pending[request.sample].files
                if isinstance(files, Spilled):
                    self._tasks.create_task(self._send(order, files))
                else:
                    self._workers.send(worker, self._task(order, files))
            case AnswerRequest():
                self._answer(order)
            case RememberBatch():
                if self.planner is not None:
                    self.planner.remember(order)

    async def _send(self, order: RunStage, spilled: Spilled) -> None:
        """Have a worker run a stage with files that lie on disk."""
        try:
            files = await self._shelf.get(spilled)
        except OSError as error:  # whatever took them: the stage before does not run again
            if self.running.get(order.worker) == order.request:
                done = StageDone("refused", detail=f"files of the stage before are gone: {error}")
                self._done(order.worker, done, at_us=self._clock.monotonic_us())
            return
        # The worker may have been stopped while the disk was read.
        if self.running.get(order.worker) == order.request and self._workers is not None:
            self._workers.send(order.worker, self._task(order, files))

    def _task(self, order: RunStage, files: Files) -> Task:
        record = self.records[order.request.batch]
        pending = record.pending[order.request.sample]
        return Task(
            program=record.program.name,
            stage=order.stage,
            text=pending.sample.text,
            reference=pending.sample.reference,
            settings=record.settings,
            files=dict(files),
            definition=record.program.definition,
        )

    def _answer(self, order: AnswerRequest) -> None:
        record = self.records[order.request.batch]
        pending = record.pending[order.request.sample]
        is_scored = order.verdict is Verdict.SCORED
        files = {} if isinstance(pending.files, Spilled) or not is_scored else pending.files
        if not is_scored and isinstance(pending.files, Spilled):
            self._tasks.create_task(self._shelf.drop(pending.files, record.room))
            record.note(
                order.request.sample, output=pending.output, detail=pending.detail, files={}
            )
        record.answer(
            pb.ScoreReply(
                index=order.request.sample,
                score=order.score,
                verdict=order.verdict,
                time_us=order.run_us,
                queue_us=order.queue_us,
                output=pending.output,
                detail=pending.detail or cut(order.reason),
                version=record.program.version,
                files=files,
            )
        )

    def _heard(self, worker: WorkerId, said: Ready | StageDone | str) -> None:
        at_us = self._clock.monotonic_us()
        match said:
            case Ready(sandbox=sandbox):
                self.sandbox = sandbox
                self.post(WorkerReady(at_us=at_us, worker=worker))
            case StageDone():
                self._done(worker, said, at_us=at_us)
            case str():
                self.running.pop(worker, None)
                self.post(WorkerLost(at_us=at_us, worker=worker, reason=said))

    def _done(self, worker: WorkerId, done: StageDone, *, at_us: int) -> None:
        request = self.running.get(worker)
        if request is None:
            return  # it was stopped, and what it ran is decided
        if done.how not in {"passed", "scored"}:
            self._ended(worker, done, None, at_us=at_us)
            return
        nbytes = sum(len(path) + len(data) for path, data in done.files.items())
        room = self.records[request.batch].room
        if nbytes <= SMALL_BYTES and room.nbytes + nbytes <= self._config.max_bytes:
            self._ended(worker, done, done.files, at_us=at_us)
        else:
            self._tasks.create_task(self._spill(worker, request, done))

    async def _spill(self, worker: WorkerId, request: RequestId, done: StageDone) -> None:
        """Put what a stage left on disk; then it has ended."""
        record, spilled = self.records[request.batch], None
        try:
            spilled = await self._shelf.put(done.files, record.place, record.room)
        except PlexError as error:
            done = StageDone("refused", output=done.output, detail=error.message)
        if self.running.get(worker) == request:
            self._ended(worker, done, spilled, at_us=self._clock.monotonic_us())
        elif spilled is not None:
            await self._shelf.drop(spilled, record.room)

    def _ended(
        self, worker: WorkerId, done: StageDone, files: Files | Spilled | None, *, at_us: int
    ) -> None:
        """Take what a stage printed and left, and tell the core how it ended."""
        request = self.running.pop(worker)
        record = self.records[request.batch]
        pending = record.pending[request.sample]
        if files is not None and isinstance(pending.files, Spilled):
            self._tasks.create_task(self._shelf.drop(pending.files, record.room))
        output = cut(pending.output + done.output)
        detail = done.detail if done.how in {"scored", "timed_out"} else ""
        if record.room.nbytes + len(output) + len(detail) > self._config.max_bytes:
            output, detail = OUTPUT_LEFT_OUT, ""
        record.note(request.sample, output=output, detail=detail, files=files)
        self.post(_fact_of(done, worker, at_us=at_us))

    def _tick(self) -> None:
        if self._failure is not None:
            raise self._failure
        now_us = self._clock.monotonic_us()
        due_us = self.core.next_deadline_us()
        if (due_us is not None and due_us <= now_us) or not self._has_begun:
            # The first fact has the core start the workers that are kept.
            self._has_begun = True
            self.post(TimePassed(at_us=now_us))
        for batch_id, record in list(self.records.items()):
            if not record.readers and record.quiet_since_us + self._config.keep_us <= now_us:
                self.post(BatchLeft(at_us=now_us, batch=batch_id))
                del self.records[batch_id]
                record.leave()
                if not any(batch.tenant == batch_id.tenant for batch in self.records):
                    del self.rooms[batch_id.tenant]
                self._tasks.create_task(self._shelf.clear(record.place))
        self._full_passes.look(now_us, is_idle=not self.core.batches)


def _fact_of(done: StageDone, worker: WorkerId, *, at_us: int) -> RewardEvent:
    match done.how:
        case "scored":
            return SampleScored(at_us=at_us, worker=worker, score=done.score)
        case "passed":
            return StagePassed(at_us=at_us, worker=worker)
        case "timed_out":
            return SampleTimedOut(at_us=at_us, worker=worker)
        case "refused":
            return SampleRefused(at_us=at_us, worker=worker, reason=done.detail)
        case _:
            return ProgramFailed(at_us=at_us, worker=worker, reason=done.detail)

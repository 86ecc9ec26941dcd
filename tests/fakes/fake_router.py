"""A fake router on a real socket: one deterministic rule a method, and faults on demand.

It keeps the promises a client relies on (one answer an operation id, order by seq, `after`,
staging before running, resumable streams) and records what it saw. It runs no model: see
`fake_logprobs` and `fake_tokens` for what it answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire import tensors
from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    reward_pb2,
    service_pb2,
    service_pb2_grpc,
)
from tests.fakes.fake_stream import FakeStream

Arrays = dict[str, npt.NDArray[np.generic]]
Result = operations_pb2.OperationResult
TOKEN = "fake-token"
VOCAB = 50
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one call of a method: at most one of these."""

    lose_request: bool = False
    lose_reply: bool = False
    cut_after: int | None = None  # messages of a stream
    replay: bool = False  # a generate stream starts over from its first frame
    refuse: PlexError | None = None
    stalls: bool = False  # a unary call, until its caller gives up
    status: grpc.StatusCode = UNAVAILABLE


@dataclass(slots=True)
class Lane:
    """One deployment's order."""

    next_seq: int = 1
    version: int = 0
    applied: list[tuple[int, str]] = field(default_factory=list)


def _ready(request: service_pb2.CreateDeploymentRequest) -> service_pb2.Deployment:
    return service_pb2.Deployment(
        deployment_id=request.deployment_id,
        job_id=request.job_id,
        name=request.name,
        spec=request.spec,
        state="ready",
        vocab_size=VOCAB,
    )


def fake_logprobs(tokens: npt.ArrayLike, targets: npt.ArrayLike | None) -> npt.NDArray[np.float32]:
    """Return what the fake answers to `forward`."""
    assert targets is not None
    mixed = np.asarray(tokens, np.int64) * 31 + np.asarray(targets, np.int64) * 7
    return (-(mixed % 97) / 97).astype(np.float32)


def fake_tokens(prompt: list[int], sample_index: int, max_tokens: int) -> list[int]:
    """Return the tokens the fake generates."""
    return [(sum(prompt) + 3 * sample_index + k) % VOCAB for k in range(max_tokens)]


Message = TypeVar("Message")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class FakeRouter(service_pb2_grpc.RouterServicer):
    """The servicer and its records. Make one with `running_fake_router`."""

    def __init__(self) -> None:
        self.address = ""
        self.sampled: list[operations_pb2.Operation] = []
        self.scored: list[reward_pb2.ScoreRequest] = []
        self.programs: list[reward_pb2.AddProgramRequest] = []
        self.program_version = ""
        self.group = asyncio.TaskGroup()
        self.faults: dict[str, deque[Fault | None]] = defaultdict(deque)
        self.calls: list[str] = []
        self.jobs: dict[str, service_pb2.Job] = {}
        self.ended: list[service_pb2.EndJobRequest] = []
        self.cancelled: list[bytes] = []
        self.created: list[service_pb2.CreateJobRequest] = []
        self.keepalives: list[service_pb2.KeepAliveRequest] = []
        self.former: service_pb2.Job | None = None
        """The job that is resumed."""
        self.left: service_pb2.Deployment | None = None
        """What its controller left of each deployment."""
        self.notice = ""
        self.deployments: dict[str, service_pb2.Deployment] = {}
        self.sets: list[list[str]] = []
        self.attempts: list[operations_pb2.Operation] = []
        self.lanes: dict[str, Lane] = defaultdict(Lane)
        self.order: list[tuple[str, str]] = []
        self.uploads: dict[bytes, Arrays] = {}
        self.files: dict[str, bytes] = {}
        self.stage_results = False
        self.max_staged = 1000
        """How many uploads may wait for their operations."""
        self._staged: set[bytes] = set()
        self.damages_left = 0
        """How many fetched results will have a flipped bit."""
        self.hold: threading.Event | None = None
        self.frame_tokens = 3
        self.job_state = service_pb2.JOB_STATE_RUNNING
        self._answers: dict[bytes, asyncio.Task[Result]] = {}
        self._payloads: dict[tuple[bytes, int], bytes] = {}
        self._frames: dict[bytes, list[operations_pb2.GenerateFrame]] = {}
        self._changed = asyncio.Condition()

    def fail(self, method: str, *faults: Fault | None) -> None:
        """Let the next calls of `method` meet `faults`, one each; None is an untouched call.

        A call of `Operate` is an operation on its stream, `Operate/step` one of that kind only.
        What is lost takes the stream with it. A refusal takes the operation's number, unless it is
        retryable or `internal`.
        """
        self.faults[method].extend(faults)

    def stop(self) -> None:
        """End what still waits."""
        for answer in self._answers.values():
            answer.cancel()

    # ---- jobs

    async def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: Context
    ) -> service_pb2.Job:
        fault = await self._meet("CreateJob", context)
        self.created.append(request)
        if request.resume_id and self.former is not None:
            return self.former
        job = service_pb2.Job(
            job_id=request.job_id,
            name=request.name,
            state=self.job_state,
            session_ttl_us=request.session_ttl_us or 60_000_000,
        )
        reply = self.jobs.setdefault(request.job_id, job)
        await self._lose(fault, context)
        return reply

    async def KeepAlive(
        self, request: service_pb2.KeepAliveRequest, context: Context
    ) -> service_pb2.KeepAliveReply:
        await self._meet("KeepAlive", context)
        self.keepalives.append(request)
        return service_pb2.KeepAliveReply(
            state=self.job_state, reason="as the test says", notice=self.notice
        )

    async def EndJob(self, request: service_pb2.EndJobRequest, context: Context) -> service_pb2.Job:
        fault = await self._meet("EndJob", context)
        self.ended.append(request)
        await self._lose(fault, context)
        return service_pb2.Job(job_id=request.job_id, state=request.outcome)

    async def GetStatus(
        self,
        request: service_pb2.GetStatusRequest,
        context: Context,
    ) -> service_pb2.ClusterStatus:
        await self._meet("GetStatus", context)
        return service_pb2.ClusterStatus(jobs=self.jobs.values())

    async def ExplainOperation(
        self, request: service_pb2.ExplainRequest, context: Context
    ) -> service_pb2.ExplainReply:
        await self._meet("ExplainOperation", context)
        told = request.operation_id.hex() or request.job_id
        return service_pb2.ExplainReply(text=f"{told} is done")

    async def CancelOperation(
        self, request: service_pb2.CancelOperationRequest, context: Context
    ) -> service_pb2.CancelOperationReply:
        await self._meet("CancelOperation", context)
        async with self._changed:
            self.cancelled.append(request.operation_id)
            self._changed.notify_all()
        return service_pb2.CancelOperationReply()

    async def CreateDeployment(
        self, request: service_pb2.CreateDeploymentRequest, context: Context
    ) -> service_pb2.Deployment:
        fault = await self._meet("CreateDeployment", context)
        reply = _ready(request)
        if self.left is not None:
            reply.MergeFrom(self.left)
        self.deployments.setdefault(request.deployment_id, reply)
        await self._lose(fault, context)
        return reply

    async def CreateDeployments(
        self, request: service_pb2.CreateDeploymentsRequest, context: Context
    ) -> service_pb2.CreateDeploymentsReply:
        fault = await self._meet("CreateDeployments", context)
        self.sets.append([one.name for one in request.deployments])
        made = [_ready(one) for one in request.deployments]
        for one in made:
            self.deployments.setdefault(one.deployment_id, one)
        await self._lose(fault, context)
        return service_pb2.CreateDeploymentsReply(deployments=made)

    # ---- operations

    async def Operate(  # type: ignore[override]
        self, request_iterator: AsyncIterator[operations_pb2.Operation], context: Context
    ) -> None:
        del request_iterator
        self.calls.append("Operate")
        await self._authenticate(context)
        await context.send_initial_metadata(())
        stream = FakeStream(context, cut=asyncio.get_running_loop().create_future())
        try:
            stream.start(self._take(stream))
            waiting: set[asyncio.Future[Any]] = {*stream.tasks, stream.cut}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stream.end()
        if stream.cut.done():
            await context.abort(stream.cut.result(), "cut by the test")

    async def _take(self, stream: FakeStream) -> None:
        while (operation := await stream.context.read()) is not grpc.aio.EOF:
            self.attempts.append(operation)
            fault = self._fault("Operate", faults_of=f"Operate/{operation.WhichOneof('body')}")
            if fault is not None and fault.lose_request:
                stream.lose(fault.status)
                return
            stream.start(self._answer(operation, fault, stream))

    async def _answer(
        self, operation: operations_pb2.Operation, fault: Fault | None, stream: FakeStream
    ) -> None:
        refusal = fault.refuse if fault is not None else None
        if refusal is not None and (refusal.retryable or refusal.code is ErrorCode.INTERNAL):
            await self._put_back(operation)
            await stream.send(_refused(operation, refusal))
            return
        answer = self._answers.get(operation.operation_id)
        if answer is None:  # a task of its own: an operation does not end with its stream
            answer = self.group.create_task(self._run(operation, refusal))
            self._answers[operation.operation_id] = answer
        result = await asyncio.shield(answer)
        if fault is not None and fault.lose_reply:
            stream.lose(fault.status)
        else:
            await stream.send(result)

    async def _put_back(self, operation: operations_pb2.Operation) -> None:
        """Forget the payload of an operation that is refused for now, once it is there."""
        if operation.payload.WhichOneof("form") == "staged":
            async with self._changed:
                await self._changed.wait_for(lambda: operation.operation_id in self.uploads)
                del self.uploads[operation.operation_id]
                self._staged.discard(operation.operation_id)

    async def _run(self, operation: operations_pb2.Operation, refusal: PlexError | None) -> Result:
        lane = self.lanes[operation.deployment_id]
        if operation.seq < lane.next_seq:
            error = PlexError(ErrorCode.STALE_SEQUENCE, f"{operation.seq} is taken")
            return _refused(operation, error)
        if self.hold is not None:
            await asyncio.to_thread(self.hold.wait, 30)
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_ready(operation, lane))
            lane.next_seq += 1
            self._changed.notify_all()
            if operation.operation_id in self.cancelled:
                refusal = PlexError(ErrorCode.CANCELLED, "cancelled before it ran")
            if refusal is not None:
                return _refused(operation, refusal)
            self._staged.discard(operation.operation_id)
            kind = operation.WhichOneof("body")
            lane.applied.append((operation.seq, kind))
            self.order.append((operation.deployment_id.rpartition("/")[2], kind))
            return self._apply(operation, lane)

    def _is_ready(self, operation: operations_pb2.Operation, lane: Lane) -> bool:
        needed = operation.payload.WhichOneof("form") == "staged"
        is_staged = not needed or operation.operation_id in (*self.uploads, *self.cancelled)
        after = [self._answers.get(known) for known in operation.after]
        return (
            operation.seq == lane.next_seq
            and all(answer is not None and answer.done() for answer in after)
            and is_staged
        )

    def _apply(self, operation: operations_pb2.Operation, lane: Lane) -> Result:
        result = Result(
            operation_id=operation.operation_id, state=operations_pb2.OPERATION_STATE_APPLIED
        )
        result.times.run_us = 7
        arrays = self._inputs(operation)
        match operation.WhichOneof("body"):
            case "forward" | "forward_backward" | "backward":
                self._score(operation, arrays, result)
            case "step":
                result.metrics["lr"] = operation.step.lr
            case "publish":
                result.weight_version = operation.seq
            case "pull":
                lane.version = operation.pull.version
            case "generate":
                self._generate(operation, lane.version)
            case "state_digest":
                result.texts["param"] = "abc"
            case "noop" | "zero_grad" | "save" | "load" | "export" | "seed":
                pass
            case other:
                raise AssertionError(f"the fake router does not know {other}")
        return result

    def _inputs(self, operation: operations_pb2.Operation) -> Arrays:
        if operation.payload.WhichOneof("form") == "staged":
            return self.uploads[operation.operation_id]
        return tensors.decode(operation.payload.inline)

    def _score(self, operation: operations_pb2.Operation, arrays: Arrays, result: Result) -> None:
        result.metrics["tokens"] = float(arrays["tokens"].size)
        if "grad_logprobs" in arrays:
            result.metrics["grad_sum"] = float(np.sum(arrays["grad_logprobs"]))
        is_asked = operation.WhichOneof("body") == "forward"
        if not is_asked and not operation.forward_backward.return_logprobs:
            return
        role = self.deployments[operation.deployment_id].spec.role
        targets = arrays.get("target_tokens", arrays["tokens"])
        values = fake_logprobs(arrays["tokens"], targets)
        name = "values" if role == "critic" else "logprobs"
        self._shard(operation.operation_id, arrays["cu_seqlens"], values, result=result, name=name)

    def _shard(
        self,
        operation_id: bytes,
        cu_seqlens: npt.NDArray[np.generic],
        values: npt.NDArray[np.float32],
        *,
        result: Result,
        name: str,
    ) -> None:
        """Answer like two data-parallel ranks that took every other sequence, backwards."""
        parts = np.split(values, cu_seqlens[1:-1])
        for rank in range(2):
            sequences = list(range(len(parts)))[rank::2][::-1]
            flat = np.concatenate([parts[i] for i in sequences] or [values[:0]])
            bundle = tensors.encode({name: flat})
            payload = tensors.inline({name: flat})
            if self.stage_results:
                self._payloads[operation_id, rank] = bundle.data
                staged = common_pb2.StagedBundle(tensors=bundle.tensors, nbytes=len(bundle.data))
                payload = common_pb2.Payload(staged=staged, checksum=payload.checksum)
            shard = operations_pb2.ResultShard(sequences=sequences, payload=payload)
            result.shards.append(shard)

    # ---- bytes

    async def StagePayload(
        self, request_iterator: AsyncIterator[service_pb2.StageRequest], context: Context
    ) -> service_pb2.StageReply:
        fault = await self._meet("StagePayload", context)
        data, header, seen = bytearray(), None, 0
        async for part in request_iterator:
            if part.WhichOneof("part") == "header":
                header = part.header
                continue
            assert part.chunk.offset == len(data), "an upload starts over from its first byte"
            data.extend(part.chunk.data)
            seen += 1
            if fault is not None and fault.cut_after == seen:
                await context.abort(UNAVAILABLE, "cut by the test")
        if header is None or len(data) < header.nbytes:  # gRPC ends a cut stream like a whole one
            await context.abort(UNAVAILABLE, "the upload broke off")
        if len(self._staged - {header.operation_id}) >= self.max_staged:
            full = PlexError(ErrorCode.STAGING_FULL, "others wait there")
            return service_pb2.StageReply(error=to_wire(full))
        async with self._changed:
            self._staged.add(header.operation_id)
            self.uploads[header.operation_id] = tensors.views(header.tensors, bytes(data))
            self._changed.notify_all()
        await self._lose(fault, context)
        return service_pb2.StageReply(nbytes=len(data))

    async def FetchResult(
        self, request: service_pb2.FetchResultRequest, context: Context
    ) -> AsyncIterator[common_pb2.Chunk]:
        fault = await self._meet("FetchResult", context)
        data = self._payloads[request.operation_id, request.shard]
        if self.damages_left:
            self.damages_left -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        chunks = tensors.chunks([memoryview(data)], start=request.offset)
        async for chunk in self._cut(chunks, fault, context):
            yield chunk

    async def FetchModelFile(
        self, request: service_pb2.FetchModelFileRequest, context: Context
    ) -> AsyncIterator[common_pb2.Chunk]:
        fault = await self._meet("FetchModelFile", context)
        if request.name not in self.files:
            await self._abort(context, PlexError(ErrorCode.NOT_FOUND, f"no file {request.name}"))
        chunks = tensors.chunks([memoryview(self.files[request.name])], start=request.offset)
        async for chunk in self._cut(chunks, fault, context):
            yield chunk

    # ---- generate

    def _generate(self, operation: operations_pb2.Operation, version: int) -> None:
        """Record the frames: every sample grows by `frame_tokens` a frame, then the result."""
        params = operation.generate.sampling
        frames: list[operations_pb2.GenerateFrame] = []
        for start in range(0, params.max_tokens, self.frame_tokens):
            deltas = [
                self._delta(list(prompt.token_ids), p, i, start, params.max_tokens, version)
                for p, prompt in enumerate(operation.generate.prompts)
                for i in range(params.n)
            ]
            frames.append(operations_pb2.GenerateFrame(cursor=len(frames) + 1, deltas=deltas))
        result = Result(operation_id=operation.operation_id, metrics={"samples": 1.0})
        frames.append(operations_pb2.GenerateFrame(cursor=len(frames) + 1, result=result))
        self._frames[operation.operation_id] = frames

    def _delta(
        self, prompt: list[int], p: int, i: int, start: int, max_tokens: int, version: int
    ) -> operations_pb2.SampleDelta:
        tokens = fake_tokens(prompt, i, max_tokens)
        end = min(start + self.frame_tokens, max_tokens)
        delta = operations_pb2.SampleDelta(
            prompt_index=p,
            sample_index=i,
            position=start,
            token_ids=tokens[start:end],
            logprobs=[-0.125 * (k + 1) for k in range(start, end)],
        )
        if end == max_tokens:
            delta.finish_reason = operations_pb2.FINISH_REASON_LENGTH
            delta.versions.add(version=version, start=0, end=max_tokens)
        return delta

    async def StreamGenerate(
        self, request: service_pb2.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[operations_pb2.GenerateFrame]:
        fault = await self._meet("StreamGenerate", context)
        if request.operation_id not in self._answers:
            await self._abort(context, PlexError(ErrorCode.NOT_FOUND, "not known yet"))
        async with self._changed:
            await self._changed.wait_for(lambda: request.operation_id in self._frames)
        first = 0 if fault is not None and fault.replay else request.after_cursor
        async for frame in self._cut(self._frames[request.operation_id][first:], fault, context):
            yield frame

    async def Sample(
        self, request: operations_pb2.Operation, context: Context
    ) -> AsyncIterator[operations_pb2.GenerateFrame]:
        fault = await self._meet("Sample", context)
        self.sampled.append(request)
        if self.hold is not None:
            await asyncio.to_thread(self.hold.wait, 30)
        version = self.lanes[request.deployment_id].version
        self._generate(request, version)
        first = operations_pb2.GenerateFrame(prompts=request.generate.prompts)
        frames = [first, *self._frames.pop(request.operation_id)]
        async for frame in self._cut(frames, fault, context):
            yield frame

    async def Score(
        self, request: reward_pb2.ScoreRequest, context: Context
    ) -> AsyncIterator[reward_pb2.ScoreReply]:
        """Score each sample by its length; one that says "broken" is an error."""
        fault = await self._meet("Score", context)
        self.scored.append(request)
        replies = [
            reward_pb2.ScoreReply(
                index=sample.index,
                score=len(sample.text),
                verdict="error" if sample.text == "broken" else "scored",
                time_us=1000,
                version=request.version or self.program_version,
            )
            for sample in request.samples
        ]
        async for reply in self._cut(replies, fault, context):
            yield reply

    async def AddProgram(
        self, request: reward_pb2.AddProgramRequest, context: Context
    ) -> reward_pb2.RewardProgram:
        """Keep a program; its version is how many were kept."""
        await self._meet("AddProgram", context)
        self.programs.append(request)
        return reward_pb2.RewardProgram(name=request.name, version=str(len(self.programs)))

    # ---- faults

    async def _authenticate(self, context: Context) -> None:
        if ("authorization", f"Bearer {TOKEN}") not in tuple(context.invocation_metadata() or ()):
            await self._abort(context, PlexError(ErrorCode.UNAUTHENTICATED, "unknown token"))

    def _fault(self, method: str, *, faults_of: str = "") -> Fault | None:
        queue = self.faults[faults_of] or self.faults[method]
        return queue.popleft() if queue else None

    async def _meet(self, method: str, context: Context) -> Fault | None:
        self.calls.append(method)
        await self._authenticate(context)
        fault = self._fault(method)
        if fault is not None and fault.stalls:
            await asyncio.Event().wait()
        if fault is not None and fault.lose_request:
            await context.abort(fault.status, "lost on the way in, by the test")
        if fault is not None and fault.refuse is not None:
            await self._abort(context, fault.refuse)
        return fault

    async def _lose(self, fault: Fault | None, context: Context) -> None:
        if fault is not None and fault.lose_reply:
            await context.abort(fault.status, "lost on the way out, by the test")

    async def _cut(
        self, messages: Iterable[Message], fault: Fault | None, context: Context
    ) -> AsyncIterator[Message]:
        for sent, message in enumerate(messages):
            if fault is not None and fault.cut_after == sent:
                await context.abort(fault.status, "cut by the test")
            yield message

    async def _abort(self, context: Context, error: PlexError) -> NoReturn:
        trailing = (("plex-error-bin", to_wire(error).SerializeToString()),)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message, trailing)


def _refused(operation: operations_pb2.Operation, error: PlexError) -> Result:
    return Result(
        operation_id=operation.operation_id,
        state=operations_pb2.OPERATION_STATE_REFUSED,
        error=to_wire(error),
    )


@contextmanager
def running_fake_router() -> Iterator[FakeRouter]:
    """Serve a fake router on loopback from a thread of its own, until the block ends."""
    started, stopping = threading.Event(), threading.Event()
    found: list[FakeRouter] = []

    async def serve() -> None:
        router = FakeRouter()
        server = grpc.aio.server()
        service_pb2_grpc.add_RouterServicer_to_server(router, server)
        router.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with router.group:
            found.append(router)
            started.set()
            await asyncio.to_thread(stopping.wait)
            await server.stop(grace=0)
            router.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fake-router")
    thread.start()
    started.wait()
    try:
        yield found[0]
    finally:
        stopping.set()
        thread.join()

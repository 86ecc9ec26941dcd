"""Sessions of Tinker clients: a job each, with its models, samplers and futures.

Theory of operation. Everything that a client was told of is a record in the store before it is
told: the session, each model, each sampler, and each future with the request that made it. A router
that finds a session in the store alone loads it, and starts every future again. Operation ids and
numbers follow from the requests, so what had run is answered from the service's record. A future
leaves memory and store by the second heartbeat after its answer was read.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash
from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError, bad_request, internal, not_found
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router.api import SchedulerApi
from plexsvc.router.http.tinker.lanes import OperationLane, Wire
from plexsvc.router.http.tinker.records import Records, check_size
from plexsvc.slots import Limit

TTL_US: Final = 180_000_000
"""How long a session lives without a heartbeat; the SDK sends one in 10 s."""
PREFIX: Final = "tinker-"
"""What a session's id begins with."""
MAX_FUTURES: Final = 65_536
"""Futures of a session whose answers are not acknowledged."""
UNREAD: Final = Limit(
    total=2 << 30,
    what="bytes of Tinker requests and answers that were not read",
    key="sessions.UNREAD",
)
MAX_FACTS_BYTES: Final = 64 << 10
"""What a client may tell of a session, a model or saved weights: each list of them reads it."""
_SESSION_ID: Final = re.compile(PREFIX + "[0-9a-f]{16}")

log = Log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureResult:
    """What a future became: an object, and the message that newer SDKs read in its place."""

    told: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    message: Message | None = None

    @property
    def nbytes(self) -> int:
        """What it takes until it is read: what comes without a message is small."""
        return 0 if self.message is None else self.message.ByteSize()


@dataclass(slots=True, kw_only=True, eq=False)
class Future:
    """A request that was acknowledged, and its answer to come."""

    request_id: str
    kind: str
    facts: dict[str, Any]
    body: bytes
    task: asyncio.Task[FutureResult | PlexError] | None = None
    nbytes: int = 0
    """Of its record and its answer; the body leaves memory once that is there."""

    @property
    def clone(self) -> int:
        """Which of a sampler's clients made it: its numbers begin with it."""
        return int(self.request_id.rpartition(":")[2]) // 1_000_000_000

    @property
    def work(self) -> asyncio.Task[FutureResult | PlexError]:
        """What makes its answer, or finds out why there is none."""
        assert self.task is not None, self.request_id
        return self.task

    def to_record(self) -> bytes:
        """Return it as the store has it."""
        head = {"request_id": self.request_id, "kind": self.kind, "facts": self.facts}
        return json.dumps(head).encode() + b"\n" + self.body

    @classmethod
    def of_record(cls, record: bytes) -> Future:
        """Return it as it was."""
        head, _, body = record.partition(b"\n")
        return cls(body=body, **json.loads(head))


Runner = Callable[["TinkerSession", Future], Awaitable[FutureResult]]
"""Makes the answer of a kind of future; run again, it makes the same."""


@dataclass(slots=True, kw_only=True, eq=False)
class TinkerSession:
    """A client's session, as it is here. Its id is its job's."""

    tenant: TenantId
    session_id: str
    facts: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    samplers: dict[str, dict[str, Any]] = field(default_factory=dict)
    futures: dict[str, Future] = field(default_factory=dict)
    read: set[Future] = field(default_factory=set)
    """Futures whose answers were read since the last heartbeat."""
    old: set[Future] = field(default_factory=set)
    """Those whose answers were read before it."""
    lanes: dict[str, OperationLane] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)
    """Its rollout deployments, by base model."""
    ended: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What ended, by sampler and client of it."""
    lines: dict[str, bytes] = field(default_factory=dict)
    """The last operation of each deployment that this router numbers the operations of."""

    def model(self, model_id: str) -> dict[str, Any]:
        """Return what is known of a model.

        Raises:
            PlexError: `not_found`.
        """
        if model_id not in self.models:
            raise not_found(f"session {self.session_id!r} has no model {model_id!r:.200}")
        return self.models[model_id]


class TinkerSessions:
    """The sessions of all tenants."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        wire: Wire,
        *,
        control: Callable[..., Awaitable[Message]],
        keep_alive: Callable[..., Awaitable[pb.KeepAliveReply]],
        runners: Mapping[str, Runner],
    ) -> None:
        self._scheduler = scheduler
        self._records = Records(scheduler)
        self._wire = wire
        self._control = control
        self._keep_alive = keep_alive
        self._runners = runners
        self._sessions: dict[tuple[TenantId, str], TinkerSession] = {}
        self._unread: Counter[TenantId] = Counter()
        """Bytes of each tenant's futures."""
        self._loading = asyncio.Lock()
        self.clock = wire.clock
        self.group: asyncio.TaskGroup | None = None
        """What runs the requests, while the front serves."""

    async def open(self, asked: Mapping[str, Any], *, tenant: TenantId) -> TinkerSession:
        """Open a session: a job of its own.

        Raises:
            PlexError: `bad_request`; what the scheduler refuses a job for.
        """
        session_id = f"{PREFIX}{secrets.token_hex(8)}"
        facts = {
            name: asked.get(name)
            for name in ("tags", "user_metadata", "display_name", "project_id")
        } | {"created_us": self._wire.clock.wall_us()}
        check_facts(facts, "tags, user_metadata, display_name and project_id")
        session = TinkerSession(tenant=tenant, session_id=session_id, facts=facts)
        await self._records.keep(tenant, {f"session/{session_id}": facts})
        request = pb.CreateJobRequest(job_id=session_id, name="tinker", session_ttl_us=TTL_US)
        try:
            await self._control("CreateJob", request, tenant=tenant)
        except PlexError:
            await self.drop(session)
            raise
        self._sessions[tenant, session_id] = session
        assert self.group is not None, session_id
        self.group.create_task(self._forget(tenant))
        return session

    async def _forget(self, tenant: TenantId) -> None:
        try:
            await self.all(tenant)
        except Exception as error:  # noqa: BLE001 - the next session's turn
            log.warning("sessions not looked at", tenant=tenant, error=error)

    async def get(self, name: str, *, tenant: TenantId) -> TinkerSession:
        """Return the session that an id names or begins with.

        Raises:
            PlexError: `not_found`.
        """
        session_id = name.partition(":")[0]
        key = tenant, session_id
        if not _SESSION_ID.fullmatch(session_id):
            raise _unknown(session_id)
        if key not in self._sessions:
            async with self._loading:
                # Somebody may have loaded it while we waited: two of one session would run all of
                # it twice.
                if key not in self._sessions:
                    self._sessions[key] = await self._load(session_id, tenant=tenant)
        return self._sessions[key]

    async def all(self, tenant: TenantId) -> list[TinkerSession]:
        """Return a tenant's sessions that live, oldest first; forget those whose clients left."""
        jobs = await self._control("ListJobs", pb.ListJobsRequest(), tenant=tenant)
        assert isinstance(jobs, pb.ListJobsReply), jobs
        live = {job.job_id for job in jobs.jobs}
        sessions = []
        for session_id, body in (await self._records.find(tenant, "session/")).items():
            session = TinkerSession(tenant=tenant, session_id=session_id, facts=json.loads(body))
            if session_id in live:
                sessions.append(await self.get(session_id, tenant=tenant))
            elif session.facts["created_us"] < self.clock.wall_us() - TTL_US:
                await self.drop(session)
        return sorted(sessions, key=lambda one: int(one.facts["created_us"]))

    async def beat(self, session: TinkerSession) -> None:
        """Extend a session; drop the futures whose answers were read long ago.

        Raises:
            PlexError: `job_ended`.
        """
        old = list(session.old)  # a heartbeat costs the same beside thousands that wait
        for one in old:
            if "seq" in one.facts:
                lane = self.lane(session, one.facts["deployment_id"])
                lane.answered.add(one.facts["seq"])
        acks = {name: lane.answered.upto for name, lane in session.lanes.items()}
        request = pb.KeepAliveRequest(job_id=session.session_id, acks=acks, period_us=10_000_000)
        reply = await self._keep_alive(request, tenant=session.tenant)
        if reply.state not in {pb.JOB_STATE_QUEUED, pb.JOB_STATE_RUNNING}:
            await self.drop(session)
            raise PlexError(
                ErrorCode.JOB_ENDED, f"session {session.session_id} has ended: {reply.reason}"
            )
        for one in old:
            self._remove(session, one)
        session.old, session.read = session.read, set()
        if old:
            gone = [f"future/{one.request_id}" for one in old]
            await self.keep(session, {}, gone=gone)

    async def end(self, session: TinkerSession, *, outcome: int, reason: str) -> None:
        """End a session and its job."""
        request = pb.EndJobRequest(job_id=session.session_id, outcome=outcome, reason=reason)  # type: ignore[arg-type]  # an int of that enum
        await self._control("EndJob", request, tenant=session.tenant)
        await self.drop(session)

    async def drop(self, session: TinkerSession) -> None:
        """Remember a session no longer."""
        self._sessions.pop((session.tenant, session.session_id), None)
        for one in list(session.futures.values()):
            one.work.cancel()
            self._remove(session, one)
        prefix = f"{session.session_id}/"
        found = await self._records.find(session.tenant, prefix)
        gone = [f"session/{session.session_id}", *(prefix + name for name in found)]
        await self._records.keep(session.tenant, {}, gone=gone)

    async def start(
        self,
        session: TinkerSession,
        future: Future,
        *,
        records: Mapping[str, Any] = {},
    ) -> Future:
        """Remember a request and begin it, once; the same again returns what is there.

        Raises:
            PlexError: `bad_request` for another request under its number; `queue_full`.
        """
        future.facts["digest"] = xxhash.xxh3_128_hexdigest(future.body)
        known = session.futures.get(future.request_id)
        if known is not None:
            if known.facts["digest"] != future.facts["digest"]:
                raise bad_request(
                    f"{future.request_id} came with another body before; number requests anew"
                )
            return known
        if len(session.futures) >= MAX_FUTURES:
            raise PlexError(
                ErrorCode.QUEUE_FULL,
                f"session {session.session_id} has {MAX_FUTURES} futures whose answers were not "
                "read; read some",
            )
        record = future.to_record()
        check_size(len(record))  # before it begins: what is refused for good has done nothing
        self._check_room(session, len(record))
        self._add(session, future, nbytes=len(record))
        self._begin(session, future)
        await asyncio.sleep(0)  # it takes longer than all that is done here: it goes first
        try:
            await self.keep(session, {**records, f"future/{future.request_id}": record})
        except PlexError:
            self._remove(session, future)
            raise
        return future

    async def deployment(self, session: TinkerSession, deployment_id: str) -> pb.Deployment | None:
        """Return what is known of a deployment, if it was created."""
        request = pb.GetDeploymentRequest(
            deployment_id=deployment_id, job_id=session.session_id, tenant=session.tenant
        )
        try:
            return await self._scheduler.call("GetDeployment", request, pb.Deployment)
        except PlexError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return None

    async def explain(self, session: TinkerSession) -> str:
        """Return what a session waits for, as its job."""
        request = pb.ExplainRequest(job_id=session.session_id)
        reply = await self._control("ExplainOperation", request, tenant=session.tenant)
        assert isinstance(reply, pb.ExplainReply), reply
        return reply.text

    def cancel(self) -> None:
        """End what runs here; it goes on where its session is loaded next."""
        for session in self._sessions.values():
            for one in session.futures.values():
                one.work.cancel()

    async def keep(
        self, session: TinkerSession, records: Mapping[str, Any], *, gone: Sequence[str] = ()
    ) -> None:
        """Write records of a session, as bytes or JSON; durable on return."""
        prefix = f"{session.session_id}/"
        kept = {prefix + key: value for key, value in records.items()}
        await self._records.keep(session.tenant, kept, gone=[prefix + key for key in gone])

    def lane(self, session: TinkerSession, deployment_id: str) -> OperationLane:
        """Return the lane of a deployment of a session."""
        if deployment_id not in session.lanes:
            session.lanes[deployment_id] = OperationLane(
                self._wire,
                tenant=session.tenant,
                job_id=session.session_id,
                deployment_id=deployment_id,
            )
        return session.lanes[deployment_id]

    def _check_room(self, session: TinkerSession, nbytes: int) -> None:
        """Refuse bytes beyond what may wait to be read.

        Raises:
            PlexError: `queue_full`.
        """
        held, taken = self._unread[session.tenant], self._unread.total()
        UNREAD.check(session.tenant, held=held, taken=taken, more=nbytes)

    def _add(self, session: TinkerSession, future: Future, *, nbytes: int) -> None:
        session.futures[future.request_id] = future
        self._count(session, future, nbytes)

    def _count(self, session: TinkerSession, future: Future, nbytes: int) -> None:
        if session.futures.get(future.request_id) is future:  # else it was removed meanwhile
            future.nbytes += nbytes
            self._unread[session.tenant] += nbytes

    def _remove(self, session: TinkerSession, future: Future) -> None:
        session.read.discard(future)
        session.old.discard(future)
        if session.futures.pop(future.request_id, None) is not None:
            self._unread[session.tenant] -= future.nbytes
        ended = session.ended.get((future.facts.get("sampler_id", ""), future.clone))
        if ended is not None:
            ended.forget(future.request_id)

    def _begin(self, session: TinkerSession, future: Future) -> None:
        assert self.group is not None, future
        future.task = self.group.create_task(self._run(session, future))

    async def _run(self, session: TinkerSession, future: Future) -> FutureResult | PlexError:
        try:
            found = await self._runners[future.kind](session, future)
            # New requests are refused first. An answer is only where many ran when room went out:
            # its work is done all the same, and who reads is told what became of it.
            self._check_room(session, found.nbytes)
            self._count(session, future, found.nbytes)
        except PlexError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a bug of ours is told to its caller alone
            log.error("request failed", request_id=future.request_id)
            return internal(f"the router failed: {error!r}; its log says where")
        else:
            return found
        finally:
            future.body = b""

    async def _load(self, session_id: str, *, tenant: TenantId) -> TinkerSession:
        known = await self._records.find(tenant, f"session/{session_id}")
        if "" not in known:
            raise _unknown(session_id)
        session = TinkerSession(tenant=tenant, session_id=session_id, facts=json.loads(known[""]))
        for key, body in (await self._records.find(tenant, f"{session_id}/")).items():
            kind, _, name = key.partition("/")
            match kind:
                case "model":
                    session.models[name] = json.loads(body)
                case "sampler":
                    session.samplers[name] = json.loads(body)
                case "line":
                    session.lines[name] = body
                case _:
                    future = Future.of_record(body)
                    session.futures[future.request_id] = future
        await self._resume(session)
        return session

    async def _resume(self, session: TinkerSession) -> None:
        """Go on where the router before was: what it had acknowledged, and every future."""
        for model in session.models.values():
            deployment_id = model["deployment_id"]
            open_seqs = [
                one.facts["seq"]
                for one in session.futures.values()
                if one.facts.get("deployment_id") == deployment_id and "seq" in one.facts
            ]
            upto = min(open_seqs, default=0) - 1
            if not open_seqs:
                found = await self.deployment(session, deployment_id)
                if found is None:
                    continue  # it could not be created
                upto = found.next_seq - 1
            self.lane(session, deployment_id).answered.upto = max(0, upto)
        for future in list(session.futures.values()):
            self._add(session, future, nbytes=len(future.to_record()))
            self._begin(session, future)


def check_facts(facts: Any, what: str) -> None:
    """Refuse what a client tells of something of its own beyond what is kept of that.

    Raises:
        PlexError: `bad_request`.
    """
    if len(json.dumps(facts)) > MAX_FACTS_BYTES:
        raise bad_request(f"{what}: {MAX_FACTS_BYTES} bytes of JSON at most")


def _unknown(session_id: str) -> PlexError:
    return not_found(f"there is no session {session_id!r:.100}, or it has ended")

"""Engines of a session: a rollout deployment for each base model, which takes turns at weights.

Theory of operation. A sampler names weights: those of a version that a model published, or of a
directory. An engine has one set at a time. Samples of the same weights run together; a sampler of
others waits until these are done, and those that come later wait behind it. Weights of a directory
are read by a reference deployment, which publishes them; adapters, by an actor of their shape. What
an engine is asked has numbers of this router; the last is on record before it is sent, so that a
router that follows sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import xxhash

from plexclient.ids import JobId, new_deployment_id
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.config import TinkerModel
from plexsvc.router.http.tinker.adapters import Adapter
from plexsvc.router.http.tinker.sessions import TinkerSession, TinkerSessions
from plexsvc.router.http.tinker.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What to sample with: a version that a deployment published, or else a directory."""

    deployment_id: str = ""
    version: int = 0
    path: str = ""
    adapter: Adapter | None = None
    """What lies in the directory, if it is no whole model."""


class _NumberedLane:
    """A deployment that this router numbers the operations of: one after the other."""

    def __init__(
        self, sessions: TinkerSessions, session: TinkerSession, info: pb.Deployment
    ) -> None:
        self._sessions, self._session = sessions, session
        self._lane = sessions.lane(session, info.deployment_id)
        self._next_seq = max(1, info.next_seq)
        self._lane.answered.upto = self._next_seq - 1

    @property
    def is_new(self) -> bool:
        """Whether there was no operation yet."""
        return self._next_seq == 1

    async def run(self, operation: ops.Operation) -> ops.OperationResult:
        """Return the answer of the next operation."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        record = operation.SerializeToString()
        lines = self._session.lines
        lines[self._lane.deployment_id] = record
        await self._sessions.keep(self._session, {f"line/{self._lane.deployment_id}": record})
        return await self._send(operation, seq)

    async def resume(self) -> None:
        """Send the last operation of the router before again: it may not have been answered."""
        record = self._session.lines.get(self._lane.deployment_id)
        if record is not None and self._next_seq > 1:
            try:
                await self._send(ops.Operation.FromString(record), self._next_seq - 1)
            except PlexError:  # its number is taken, which is what matters
                return

    async def _send(self, operation: ops.Operation, seq: int) -> ops.OperationResult:
        try:
            return await self._lane.run(operation, seq=seq)
        finally:
            self._lane.answered.add(seq)


class SessionEngine:
    """The rollout deployment of a base model in a session."""

    def __init__(
        self,
        sessions: TinkerSessions,
        session: TinkerSession,
        training: Training,
        *,
        base_model: str,
    ) -> None:
        self._sessions, self._session, self._training = sessions, session, training
        self._base_model = base_model
        self._known: TinkerModel = training.known(base_model)
        job_id, digest = (
            JobId(session.session_id),
            xxhash.xxh3_64_hexdigest(base_model.encode())[:8],
        )
        self.deployment_id = new_deployment_id(job_id, f"sample-{digest}")
        self._reader_id = new_deployment_id(job_id, f"read-{digest}")
        self._line: _NumberedLane | None = None
        self._readers: dict[Adapter | None, _NumberedLane] = {}
        self._now: Weights | None = None
        self._gate = asyncio.Lock()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def having(self, weights: Weights) -> AsyncIterator[None]:
        """Hold the engine at some weights.

        Raises:
            PlexError: why it is not there, or cannot have them.
        """
        async with self._gate:
            if self._now != weights:
                await self._idle.wait()
                self._now = None
                await self._take(weights)
                self._now = weights
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _take(self, weights: Weights) -> None:
        if self._line is None:
            self._line = await self._deployed(self.deployment_id, self._rollout())
        source, version = weights.deployment_id, weights.version
        is_own = weights.path == self._known.model and weights.adapter is None
        if is_own and self._line.is_new:
            return  # it began with them
        if weights.path:
            source, reader = await self._reader(weights.adapter)
            await reader.run(ops.Operation(load=ops.Load(path=weights.path)))
            published = await reader.run(ops.Operation(publish=ops.Publish()))
            version = published.weight_version
        pull = ops.Pull(source_deployment_id=source, version=version)
        try:
            await self._line.run(ops.Operation(pull=pull))
        except PlexError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            raise PlexError(
                ErrorCode.RESULT_GONE,
                f"the weights of this sampler are gone: of a model's samplers without a name only "
                f"the newest two have theirs; give one a name ({error.message})",
            ) from error

    async def _reader(self, adapter: Adapter | None) -> tuple[str, _NumberedLane]:
        """Return the deployment that reads weights of this shape, and its line."""
        name = self._reader_id + (f"-{adapter.key}" if adapter is not None else "")
        if adapter not in self._readers:
            spec = self._reference()
            if adapter is not None:
                spec = self._training.spec(self._base_model, adapter=adapter)
            self._readers[adapter] = await self._deployed(name, spec)
        return name, self._readers[adapter]

    async def _deployed(self, deployment_id: str, spec: pb.DeploymentSpec) -> _NumberedLane:
        info = await self._training.deployed(self._session, deployment_id, spec)
        line = _NumberedLane(self._sessions, self._session, info)
        await line.resume()
        return line

    def _rollout(self) -> pb.DeploymentSpec:
        return pb.DeploymentSpec(
            role="rollout",
            model=self._known.model,
            backend="vllm",
            dtype=self._known.dtype,
            max_model_len=self._known.max_model_len,
            kv_cache_bytes=self._known.kv_cache_bytes,
            num_instances=1,
        )

    def _reference(self) -> pb.DeploymentSpec:
        return pb.DeploymentSpec(
            role="reference",
            model=self._known.model,
            backend=self._known.backend,
            parallel=self._known.parallel.to_wire(),
            dtype=self._known.dtype,
        )

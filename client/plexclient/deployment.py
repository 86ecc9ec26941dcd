"""Base of all deployments: operation order, tokenizer, reading of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from plexclient.background import Background
from plexclient.calls import Cancellable, call
from plexclient.lane import Lane, Ticket
from plexclient.payloads import arrays_of
from plexclient.results import Answer, Shard, facts_of
from plexclient.session import Session
from plexclient.tokenizer import TOKENIZER_FILE, Tokenizer, fetch_model_file
from plexclient.wire.v1 import operations_pb2, service_pb2

R = TypeVar("R")
Result = operations_pb2.OperationResult
Arrays = Mapping[str, npt.NDArray[np.generic]]


class Deployment:
    """A model the job wants runnable. `info` is the service's description of it.

    `position` is what its last `step` was given as such before it was deployed, or resumed, here.
    Operations run in the order they are called, one at a time; see `plexclient.calls.Call` for the
    three forms of each.
    """

    def __init__(self, info: service_pb2.Deployment, *, session: Session, cache_dir: Path) -> None:
        self.info = info
        self.name = info.name
        self.deployment_id = info.deployment_id
        self.position: Any = json.loads(info.position or "null")
        self.job_session = session
        self.lane = Lane(session, deployment_id=info.deployment_id, first_seq=max(1, info.next_seq))
        self._cache_dir = cache_dir
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.deployment_id!r}, {self.info.spec.backend})"

    @property
    def background(self) -> Background:
        """The loop this deployment's calls run on."""
        return self.job_session.background

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; its file is fetched at the first use.

        Raises:
            PlexError: `not_found` when the model has none; `bad_request` without `tokenizers`.
        """
        if self._tokenizer is None:
            path = self.background.run(
                lambda: fetch_model_file(
                    self.job_session,
                    deployment_id=self.deployment_id,
                    name=TOKENIZER_FILE,
                    directory=self._cache_dir,
                )
            )
            self._tokenizer = Tokenizer(path)
        return self._tokenizer

    @call
    def noop(self) -> Future[Answer]:
        """Take a place in the order and do nothing."""
        return self._run(operations_pb2.Operation(noop=operations_pb2.Noop()), read=facts)

    @call
    def digest(self) -> Future[dict[str, str]]:
        """Return sha256 by kind of state (param, exp_avg, ...), the same for every layout."""
        body = operations_pb2.Operation(state_digest=operations_pb2.StateDigest())
        return self._run(body, read=_texts)

    @call
    def explain(self, operation_id: bytes) -> Future[str]:
        """Return why an operation waits or what became of it, from the scheduler's own record."""
        session = self.job_session
        request = service_pb2.ExplainRequest(operation_id=operation_id, job_id=session.job_id)

        async def ask() -> str:
            return str((await session.short("ExplainOperation", request)).text)

        return self.background.start(ask)

    def _run(
        self,
        body: operations_pb2.Operation,
        *,
        read: Callable[[Result], Coroutine[Any, Any, R]],
        arrays: Arrays | None = None,
    ) -> Future[R]:
        """Enter the operation into the order; return what `read` will make of its answer."""
        with self.job_session.order:
            ticket = self.lane.enter(body, arrays=arrays)
            return self.background.start(
                partial(self._finish, ticket, read),
                future=Cancellable(lambda: self.lane.cancel(ticket)),
            )

    async def _finish(self, ticket: Ticket, read: Callable[[Result], Coroutine[Any, Any, R]]) -> R:
        """Return what `read` makes of the answer; then the service may forget it."""
        try:
            return await read(await self.lane.answer(ticket))
        finally:
            self.lane.release(ticket)

    async def _shards(self, result: Result) -> list[Shard]:
        """Return the answer's shards with their arrays, fetched where they are staged."""
        return [await self._shard(result, index=index) for index in range(len(result.shards))]

    async def _shard(self, result: Result, *, index: int) -> Shard:
        request = service_pb2.FetchResultRequest(
            operation_id=result.operation_id,
            job_id=self.job_session.job_id,
            deployment_id=self.deployment_id,
            shard=index,
        )
        arrays = await arrays_of(
            self.job_session.link,
            request,
            payload=result.shards[index].payload,
            retry=self.job_session.retry(f"shard {index} of {result.operation_id.hex()[:8]}"),
            options=self.job_session.options,
        )
        return Shard(sequences=tuple(result.shards[index].sequences), arrays=arrays)


async def facts(result: Result) -> Answer:
    """Return the part of an answer that every operation has."""
    return facts_of(result)


async def _texts(result: Result) -> dict[str, str]:
    return dict(result.texts)

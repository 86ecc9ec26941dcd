"""Token records by operation id, of bounded bytes that tenants share."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from plexclient.wire.v1 import operations_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, not_found, payload_too_large
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.newest import Newest
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.copies import RecordCopies
from plexsvc.rollout.recordfiles import FileWatcher, RecordFile, StoredFrame, recover
from plexsvc.rollout.records import OperationRecord, renumbered
from plexsvc.slots import Limit

log = Log(__name__)

TOKEN_BYTES: Final = 32
"""Most a recorded token takes: its id twice, its logprob, and a delta of its own (28 measured)."""
PROMPT_TOKEN_BYTES: Final = 4
"""What a token of a prompt takes each time that it is held."""

COPY_WAIT_US: Final = 60_000_000
"""How long who reads an answer waits for its record: a successor needs a while to have it."""

REMEMBERED_IDS: Final = 16_384
"""Ids of dropped records that are still told apart from unknown ones."""


class RecordStore:
    """Token records of all deployments of one manager. Owned by the event loop."""

    def __init__(
        self, config: ManagerConfig, clock: Clock, *, watcher: FileWatcher | None = None
    ) -> None:
        """Begin with what a manager before has left; tell `watcher` of files."""
        self._config, self._clock, self._watcher = config, clock, watcher
        self.copies = RecordCopies(config.records_dir / "copies", max_bytes=config.record_bytes)
        self._limit = Limit(
            total=config.record_bytes,
            what="bytes for token records of running operations",
            key="rollout.record_bytes",
        )
        self._records: OrderedDict[bytes, OperationRecord] = OrderedDict()
        self._reserved: dict[bytes, int] = {}
        self._running = Counter[str]()
        self._finished: dict[str, dict[bytes, int]] = {}
        self._kept = Counter[str]()
        self._gone = Newest[bytes, None](REMEMBERED_IDS)
        self._arrivals: dict[bytes, asyncio.Event] = {}
        self._waiting: dict[bytes, int] = {}
        for operation, kept in recover(config.records_dir):
            self._recover(operation, kept)

    def open(self, operation: operations_pb2.Operation) -> OperationRecord:
        """Return the record of an operation: what a manager before has left of it, else a new one.

        A new one is not kept before it is admitted or added.
        """
        return self._records.get(operation.operation_id) or self._make(operation)

    def admit(self, record: OperationRecord, *, most_tokens: int) -> None:
        """Take a record that may grow to `most_tokens`, dropping old finished ones for it.

        Its prompts are held once in the operation, and once for each sample while that runs.

        Raises:
            PlexError: `payload_too_large` when it never fits; `queue_full` when it does not now.
        """
        generate, limit = record.operation.generate, self._limit.most
        prompts = sum(len(prompt.token_ids) for prompt in generate.prompts)
        prompt_bytes = PROMPT_TOKEN_BYTES * prompts * (1 + max(1, generate.sampling.n))
        need = most_tokens * TOKEN_BYTES + prompt_bytes
        tenant, name = record.operation.tenant, show(record.operation.operation_id)
        if need > limit:
            raise payload_too_large(
                f"{name} may generate {most_tokens} tokens, whose record takes {need} bytes with "
                f"its prompts; a tenant may have {limit} of {self._limit.total} "
                "(rollout.record_bytes); ask for fewer samples or tokens",
                need=need,
                limit=limit,
            )
        self._limit.check(
            tenant, held=self._running[tenant], taken=self._running.total(), more=need
        )
        self._evict(to_free=need)
        self._reserved[record.operation.operation_id] = need
        self._running[tenant] += need
        self.add(record)

    def add(self, record: OperationRecord) -> None:
        """Make `record` findable: streams that wait for it go on."""
        key = record.operation.operation_id
        self._records[key] = record
        if key in self._arrivals:
            self._arrivals[key].set()

    def settle(self, record: OperationRecord) -> None:
        """Count a finished record by what it really takes."""
        self._release(record)
        tenant, key = record.operation.tenant, record.operation.operation_id
        self._finished.setdefault(tenant, {})[key] = record.nbytes
        self._kept[tenant] += record.nbytes
        self._evict(to_free=0)

    def drop(self, operation_id: bytes) -> None:
        """Forget a record that was acknowledged; safe to repeat."""
        record = self._records.pop(operation_id, None)
        if record is not None:
            record.discard()
            self._release(record)
            self._gone[operation_id] = None

    def take_copies(self, deployment_id: str) -> None:
        """Go on with the records that another node's manager had of a deployment."""
        taken = 0
        for operation, entries in self.copies.take(deployment_id):
            self.drop(operation.operation_id)  # from when it was led here before
            kept, file = renumbered(entries), self._file(operation)
            if file is not None:
                for entry in kept:
                    file.append(entry)
                file.close()
            self._recover(operation, kept)
            taken += self._records[operation.operation_id].generated
        if taken:
            log.info("tokens taken over from copies", deployment=deployment_id, tokens=taken)

    def keep_only(self, deployment_ids: Collection[str]) -> None:
        """Drop the records of all other deployments."""
        for key, record in list(self._records.items()):
            if record.operation.deployment_id not in deployment_ids:
                self.drop(key)

    def get(self, operation_id: bytes) -> OperationRecord | None:
        """Return the record, None when there is none."""
        return self._records.get(operation_id)

    def of_deployment(self, deployment_id: str) -> list[OperationRecord]:
        """Return the records of one deployment, oldest first."""
        return [r for r in self._records.values() if r.operation.deployment_id == deployment_id]

    async def wait_for(
        self, operation_id: bytes, *, deployment_id: str = "", is_answered: bool = False
    ) -> OperationRecord:
        """Return the record, waiting for its operation to start; if `is_answered`, for its copy.

        Raises:
            PlexError: `result_gone` once it was dropped, or where no copy of it comes; `not_found`
                when it does not start in `frames_wait_us` or belongs to another deployment than
                `deployment_id`.
        """
        while (record := self._records.get(operation_id)) is None:
            await self._arrival(operation_id, is_answered=is_answered)
        if deployment_id not in {"", record.operation.deployment_id}:
            raise not_found(f"{show(operation_id)} is no operation of {deployment_id}")
        return record

    async def _arrival(self, operation_id: bytes, *, is_answered: bool) -> None:
        if operation_id in self._gone:
            raise PlexError(
                ErrorCode.RESULT_GONE,
                f"the token record of {show(operation_id)} was dropped: it was acknowledged, or "
                f"newer ones needed its room (rollout.record_bytes)",
            )
        event = self._arrivals.setdefault(operation_id, asyncio.Event())
        self._waiting[operation_id] = self._waiting.get(operation_id, 0) + 1
        try:
            wait_us = COPY_WAIT_US if is_answered else self._config.frames_wait_us
            async with asyncio.timeout(wait_us / 1e6):
                await event.wait()
        except TimeoutError as error:
            if is_answered:
                raise PlexError(
                    ErrorCode.RESULT_GONE,
                    f"{show(operation_id)} was answered, and its token record went with the node "
                    "of its manager before it was copied; generate again",
                ) from error
            raise not_found(
                f"{show(operation_id)} did not start within {self._config.frames_wait_us} us; "
                f"is it a generate that was submitted?"
            ) from error
        finally:
            self._waiting[operation_id] -= 1
            if not self._waiting[operation_id]:
                del self._waiting[operation_id], self._arrivals[operation_id]

    def _make(
        self, operation: operations_pb2.Operation, *, kept: Sequence[StoredFrame] = ()
    ) -> OperationRecord:
        """Return a record; one beside the order ends with its reader's stream and needs no file."""
        return OperationRecord(operation, file=self._file(operation), kept=kept)

    def _file(self, operation: operations_pb2.Operation) -> RecordFile | None:
        if not operation.seq:
            return None
        return RecordFile(self._config.records_dir, operation, watcher=self._watcher)

    def _recover(self, operation: operations_pb2.Operation, kept: Sequence[StoredFrame]) -> None:
        """Take a record that was begun before."""
        record = self._make(operation, kept=kept)
        self.add(record)
        if record.result is not None:
            self.settle(record)
        if self._watcher is not None and (file := self._file(operation)) is not None:
            self._watcher.grown(file)

    def _release(self, record: OperationRecord) -> None:
        """Give a record's bytes back, reserved or kept."""
        tenant, key = record.operation.tenant, record.operation.operation_id
        self._running[tenant] -= self._reserved.pop(key, 0)
        finished = self._finished.get(tenant, {})
        self._kept[tenant] -= finished.pop(key, 0)
        if not finished:
            self._finished.pop(tenant, None)
        for counts in (self._running, self._kept):
            if not counts[tenant]:
                del counts[tenant]

    def _evict(self, *, to_free: int) -> None:
        """Drop finished records until `to_free` bytes are free: of who has most, the oldest."""
        most = self._limit.total - to_free - self._running.total()
        while self._kept.total() > most:
            tenant = max(self._kept, key=self._kept.__getitem__)
            self.drop(next(iter(self._finished[tenant])))

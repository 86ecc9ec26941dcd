"""Copies of token records for a successor on another node.

Theory of operation. A manager has a peer, which the scheduler names. Whatever a record's file gets
is read from there and sent to the peer in order, one call at a time (`Copier`), and the peer adds
it to a file of the same format (`RecordCopies`). When a call fails, all begin anew. The peer
reads the copies of a deployment when it is to lead it. What had not been copied is sampled again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc.aio
import xxhash

from plexclient.wire.v1 import operations_pb2
from plexclient.wire.v1 import rollout_pb2 as pb
from plexclient.wire.v1 import rollout_pb2_grpc as pb_grpc
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request
from plexsvc.log import Log
from plexsvc.rollout.recordfiles import RecordFile, StoredFrame, recover
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

SENT_BYTES: Final = 1 << 20
"""Most bytes of records in one call."""

CALL_S: Final = 10.0
PAUSE_US: Final = 1_000_000
"""After a peer that did not answer, before everything is sent to it again."""

ANSWER_S: Final = 2.0
"""How long an answer waits for the copy of its record."""

ID_BYTES: Final = 16


@dataclass(slots=True)
class _Copied:
    """A record's file, and how much of it the peer has."""

    file: RecordFile
    sent: int = 0


class Copier:
    """Sends the record files of the deployments that a manager leads to its peer.

    `run` must be running. Owned by the event loop.
    """

    def __init__(self, clock: Clock, keys: ClusterKeys, *, leads: Callable[[], list[str]]) -> None:
        """Copy the records of the deployments that `leads` returns."""
        self._clock, self._keys, self._leads = clock, keys, leads
        self._files: dict[bytes, _Copied] = {}
        self._behind: dict[bytes, None] = {}
        """Operations whose file has grown, in that order."""
        self._gone: list[RecordFile] = []
        self._refused: set[bytes] = set()
        """Operations that the peer keeps no copy of."""
        self._aim = ("", 0)
        self._restarts: dict[str, None] = {}
        """Deployments whose copies begin anew."""
        self._is_taken = False
        """Whether the peer took what it was last sent."""
        self._changed, self._moved = asyncio.Event(), asyncio.Event()

    def grown(self, file: RecordFile) -> None:
        """Take note that a file has more bytes."""
        key = file.operation_id
        if key in self._refused:
            return
        if key not in self._files:
            self._files[key] = _Copied(file)
        self._behind[key] = None
        self._changed.set()

    def removed(self, file: RecordFile) -> None:
        """Take note that a file is gone."""
        known = self._files.pop(file.operation_id, None)
        self._behind.pop(file.operation_id, None)
        self._refused.discard(file.operation_id)
        if known is not None and known.sent:
            self._gone.append(file)
            self._changed.set()

    def aim(self, address: str, number: int) -> None:
        """Copy to the manager at this address, empty for none, from the beginning if it is new."""
        if self._aim != (address, number):
            self._aim = (address, number)
            self._begin_anew()

    def begins(self, deployment_id: str) -> None:
        """Take note that one more deployment is led."""
        self._restarts[deployment_id] = None
        for key, one in self._files.items():
            if one.file.deployment_id == deployment_id:
                one.sent, self._behind[key] = 0, None
        self._changed.set()

    async def caught_up(self, operation_id: bytes) -> None:
        """Return when the peer has all of a record, or does not answer, `ANSWER_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while self._is_taken and operation_id in self._behind:
                    self._moved.clear()
                    await self._moved.wait()

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            await self._changed.wait()
            aim = self._aim
            if not aim[0]:
                self._changed.clear()
                continue
            async with open_channel(aim[0], self._keys) as channel:
                await self._copy_to(channel, aim)

    async def _copy_to(self, channel: grpc.aio.Channel, aim: tuple[str, int]) -> None:
        """Copy to one peer until there is another."""
        stub = pb_grpc.RolloutManagerStub(channel)
        while self._aim == aim:
            self._changed.clear()
            try:
                while self._aim == aim and (request := self._next()) is not None:
                    reply = await stub.KeepCopies(request, timeout=CALL_S)
                    self._note(request, reply)
                    self._is_taken = True
            except (PlexError, grpc.aio.AioRpcError) as error:
                failure = error_from(error) if isinstance(error, grpc.aio.AioRpcError) else error
                if self._is_taken:
                    log.warning("token records not copied", to=aim[0], because=failure.message)
                self._begin_anew()
                await self._clock.sleep(PAUSE_US)
                continue
            await self._changed.wait()

    def _begin_anew(self) -> None:
        self._restarts, self._is_taken = dict.fromkeys(self._leads()), False
        self._gone.clear()
        self._refused.clear()
        for key, one in self._files.items():
            one.sent = 0
            self._behind[key] = None
        self._changed.set()
        self._moved.set()

    def _next(self) -> pb.KeepCopiesRequest | None:
        """Return what is to be sent next; None when the peer has everything."""
        leads = set(self._leads())
        request = pb.KeepCopiesRequest(restarts=[one for one in self._restarts if one in leads])
        self._restarts.clear()
        for file in self._gone:
            request.parts.add(
                deployment_id=file.deployment_id, operation_id=file.operation_id, is_gone=True
            )
        self._gone.clear()
        left = SENT_BYTES
        for key in list(self._behind):
            one = self._files[key]
            if one.file.deployment_id not in leads:
                del self._behind[key]
                continue
            data = one.file.read(one.sent, left)
            if not data:
                del self._behind[key]
                continue
            request.parts.add(
                deployment_id=one.file.deployment_id,
                operation_id=key,
                offset=one.sent,
                data=data,
            )
            left -= len(data)
            if left <= 0:
                break
        self._moved.set()  # some may not be behind any more
        return request if request.restarts or request.parts else None

    def _note(self, request: pb.KeepCopiesRequest, reply: pb.KeepCopiesReply) -> None:
        refused = set(reply.refused)
        for part in request.parts:
            one = self._files.get(part.operation_id)
            if one is None or part.is_gone or one.sent != part.offset:
                continue  # it was removed meanwhile, or begins anew
            one.sent += len(part.data)
            if part.operation_id in refused:
                log.warning("token record has no copy: its peer has no room", to=self._aim[0])
                self._refused.add(part.operation_id)
                del self._files[part.operation_id]
            if part.operation_id in refused or one.sent >= one.file.nbytes:
                self._behind.pop(part.operation_id, None)
        self._moved.set()


class RecordCopies:
    """Copies of records whose deployments managers of other nodes lead."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        """Go on with those in `directory`."""
        self._directory, self._max_bytes = directory, max_bytes
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sizes = {path: path.stat().st_size for path in directory.glob("*/*")}
        self._total = sum(self._sizes.values())

    def keep(self, request: pb.KeepCopiesRequest, *, leads: Collection[str]) -> list[bytes]:
        """Add bytes to copies; return the operations of which none is kept.

        Raises:
            PlexError: `bad_request` for a copy that would have a hole; nothing was changed.
        """
        for part in request.parts:
            self._check(part, is_new=part.deployment_id in request.restarts)
        for deployment_id in request.restarts:
            if deployment_id not in leads:
                self._drop(self._place(deployment_id))
        refused: dict[bytes, None] = {}
        for part in request.parts:
            path = self._place(part.deployment_id) / part.operation_id.hex()
            grown = part.offset + len(part.data) - self._sizes.get(path, 0)
            has_room = self._total + grown <= self._max_bytes
            is_kept = part.deployment_id not in leads and has_room and not part.is_gone
            if not is_kept or not self._add(path, part):
                self._remove(path)
                if not part.is_gone:
                    refused[part.operation_id] = None
        return list(refused)

    def keep_only(self, deployment_ids: Iterable[str]) -> None:
        """Drop the copies of all other deployments."""
        kept = {self._place(one) for one in deployment_ids}
        for place in list(self._directory.iterdir()):
            if place not in kept:
                self._drop(place)

    def take(
        self, deployment_id: str
    ) -> Iterator[tuple[operations_pb2.Operation, list[StoredFrame]]]:
        """Yield the records of a deployment that is led here from now on, the oldest first.

        A torn end is cut off. The copies are dropped in the end.
        """
        place = self._place(deployment_id)
        if not place.exists():
            return
        for operation, entries in recover(place):
            if operation.deployment_id == deployment_id:
                yield operation, entries
        self._drop(place)

    def _check(self, part: pb.CopiedBytes, *, is_new: bool) -> None:
        if len(part.operation_id) != ID_BYTES:
            raise bad_request(f"a copy names no operation: {part.operation_id!r}")
        path = self._place(part.deployment_id) / part.operation_id.hex()
        has = 0 if is_new else self._sizes.get(path, 0)
        if part.offset not in {0, has} and not part.is_gone:
            raise bad_request(
                f"the copy of {part.operation_id.hex()} has {has} bytes, and bytes from "
                f"{part.offset} on were sent; send it from 0"
            )

    def _add(self, path: Path, part: pb.CopiedBytes) -> bool:
        """Add bytes to a copy; return whether the disk took them."""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if part.offset else os.O_TRUNC)
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(part.data)
        except OSError as error:
            log.warning("copy of a token record not kept", path=str(path), error=error)
            return False
        self._total += part.offset + len(part.data) - self._sizes.pop(path, 0)
        self._sizes[path] = part.offset + len(part.data)
        return True

    def _remove(self, path: Path) -> None:
        self._total -= self._sizes.pop(path, 0)
        path.unlink(missing_ok=True)

    def _drop(self, place: Path) -> None:
        for path in [path for path in self._sizes if path.parent == place]:
            self._total -= self._sizes.pop(path)
        shutil.rmtree(place, ignore_errors=True)

    def _place(self, deployment_id: str) -> Path:
        return self._directory / xxhash.xxh3_128_hexdigest(deployment_id.encode())

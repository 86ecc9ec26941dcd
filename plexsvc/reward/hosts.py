"""Workers on the nodes of a cluster, each in its node's host (`host.py`), as the proxy holds them.

Theory of operation. The scheduler says which nodes have hosts (`use`). Each has a line, the call
`Work`, which is made again when it breaks. A node takes workers while its line is up and the
scheduler has it open; `told` hears what these nodes have. The workers of a line that breaks are
lost with it: the host ends them before it serves another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc.aio

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.log import Log
from plexsvc.reward.core.vocabulary import Resource, WorkerId
from plexsvc.reward.messages import Begin, Give, Halt, Message, Said, Task, Warm
from plexsvc.reward.parcels import Outbox, ParcelReader
from plexsvc.reward.workers import Heard
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

LINE_S: Final = 30 * 86_400
"""A line is made anew after so long: every call has a deadline."""

RETRY_US: Final = 200_000
"""Pause before a line that broke is made again."""

WORK: Final = "/plexsvc.v1.RewardHost/Work"

Told = Callable[[Mapping[str, Resource]], None]


@dataclass(slots=True)
class HostLine:
    """The call to the host of one node."""

    facts: pb.HostFacts
    task: asyncio.Task[None]
    outbox: Outbox | None = None
    """None while the line is down."""
    workers: dict[WorkerId, None] = field(default_factory=dict)


class HostedWorkers:
    """Workers on nodes. Use as an async context manager."""

    def __init__(self, heard: Heard, *, keys: ClusterKeys, clock: Clock, told: Told) -> None:
        self._heard = heard
        self._keys = keys
        self._clock = clock
        self._told = told
        self._tasks = asyncio.TaskGroup()
        self._lines: dict[str, HostLine] = {}
        self._places: dict[WorkerId, str] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._told({})
        return self

    async def __aexit__(self, *failure: object) -> None:
        for line in self._lines.values():
            line.task.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def pids(self) -> Mapping[WorkerId, int]:
        """Return none: the processes are other hosts'."""
        return {}

    def use(self, hosts: Iterable[pb.HostFacts]) -> None:
        """Have workers on these nodes and no others."""
        known = {facts.node_id: facts for facts in hosts}
        before = self._open()
        for node_id, line in list(self._lines.items()):
            facts = known.get(node_id)
            if facts is None or facts.address != line.facts.address:
                line.task.cancel()
                self._down(node_id, line, "its node or host is gone")
                del self._lines[node_id]
            else:
                line.facts = facts
        for node_id, facts in known.items():
            if facts.address and node_id not in self._lines:
                task = self._tasks.create_task(self._keep(node_id))
                self._lines[node_id] = HostLine(facts, task)
        if self._open() != before:
            self._told(self._open())

    def start(
        self, worker: WorkerId, *, place: str = "", modules: Sequence[str], gpus: int = 0
    ) -> None:
        """Start a worker on a node; if its line just broke, hear at once that it has ended."""
        line = self._lines.get(place)
        if line is None or line.outbox is None:
            self._heard(worker, f"node {place} takes no workers now")
            return
        self._places[worker] = place
        line.workers[worker] = None
        self._put(worker, Begin(worker, tuple(modules), gpus))

    def send(self, worker: WorkerId, task: Task) -> None:
        """Give a task to an idle worker."""
        self._put(worker, Give(worker, task))

    def warm(self, modules: Sequence[str]) -> None:
        """Have the workers import modules, before their next tasks."""
        for line in self._lines.values():
            if line.outbox is not None:
                line.outbox.put(Warm(tuple(modules)))

    def stop(self, worker: WorkerId) -> None:
        """Kill a worker."""
        self._put(worker, Halt(worker))

    def _put(self, worker: WorkerId, message: Message) -> None:
        line = self._lines.get(self._places.get(worker, ""))
        if line is not None and line.outbox is not None:  # else its end is about to be heard
            line.outbox.put(message)

    def _open(self) -> dict[str, Resource]:
        """Return what the nodes have that take workers now."""
        return {
            node_id: resource_of(line.facts)
            for node_id, line in self._lines.items()
            if line.outbox is not None and line.facts.is_open
        }

    async def _keep(self, node_id: str) -> None:
        """Keep the line to a node's host until cancelled."""
        await asyncio.sleep(0)  # it is known once this task runs
        line = self._lines[node_id]
        while True:
            try:
                await self._follow(node_id, line)
                reason = "its host ended the line"
            except grpc.aio.AioRpcError as failure:
                reason = error_from(failure).message
            except ValueError as error:  # no message: whatever speaks there is not to be trusted
                reason = f"its host sent what is no message: {error}"
            log.warning("line to a host of workers is down", node=node_id, reason=reason)
            self._down(node_id, line, reason)
            await self._clock.sleep(RETRY_US)

    async def _follow(self, node_id: str, line: HostLine) -> None:
        """Tell what a host's workers say until the line breaks."""
        outbox, inbox = Outbox(), ParcelReader()
        async with open_channel(line.facts.address, self._keys) as channel:
            made: Any = channel.stream_stream(WORK)
            async for parcel in made(outbox.parcels(), timeout=LINE_S):
                if line.outbox is None:
                    line.outbox = outbox
                    log.info("host of workers joined", node=node_id)
                    self._told(self._open())
                for said in inbox.take(parcel):
                    self._hear(line, said)

    def _hear(self, line: HostLine, said: object) -> None:
        """Tell what a worker said.

        Raises:
            ValueError: it is something else than a host says.
        """
        if not isinstance(said, Said):
            raise ValueError(f"a {type(said).__name__}")  # noqa: TRY004 - of the stream, not of a caller
        worker = WorkerId(said.worker)
        # Of a line before: those workers have been given up.
        if worker not in line.workers:
            return
        if isinstance(said.what, str):
            self._forget(line, worker)
        self._heard(worker, said.what)

    def _down(self, node_id: str, line: HostLine, reason: str) -> None:
        """Take a line out of use: its workers are lost."""
        if line.outbox is None:
            return
        line.outbox = None
        self._told(self._open())
        for worker in list(line.workers):
            self._forget(line, worker)
            self._heard(worker, f"node {node_id} lost its workers: {reason}")

    def _forget(self, line: HostLine, worker: WorkerId) -> None:
        del line.workers[worker], self._places[worker]


def resource_of(facts: pb.HostFacts) -> Resource:
    """Return what a node has for workers."""
    return Resource(cpus=facts.cpus, memory_bytes=facts.memory_bytes, gpus=facts.gpus)

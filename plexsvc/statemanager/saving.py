"""Checkpoints and digests of a WPG whose copies lie on several nodes; each node writes what it has.

The node that is asked makes the directory, deals the tensors (`shards`), and seals what all have
written. The scheduler carries its word to the others: no node may have another one write.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc import paths
from plexsvc.errors import PlexError, bad_request
from plexsvc.ids import VersionId
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.statelink.far import Far
from plexsvc.statemanager import checkpoints, shards, snapshot
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.shards import Plan
from plexsvc.statemanager.snapshot import FarPart, StateSnapshot
from plexsvc.weights import object_store
from plexsvc.weights.checkpoints import Sealed
from plexsvc.weights.reading import OpenedPart

MAX_WRITERS: Final = 8
"""Checkpoints and digests that are worked on at once; further ones wait. As many for others."""

PROGRESS_S: Final = 1.0
"""How often a caller is told how much of its checkpoint is written."""

LOOK_S: Final = 0.2
"""How often a save that waits for other nodes looks whether its caller has left."""


SHARED: Final = "another node makes it: give a writable place on a file system that all share"


class Others:
    """What other nodes write of a save; its thread asks for it, by messages of its caller."""

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self.asked: Future[pb.MaterializeReply] = Future()
        self._messages = messages
        self._loop = asyncio.get_running_loop()

    def wait(self, caller: WaitingCaller) -> dict[str, Sealed]:
        """Return what they have written.

        Raises:
            PlexError: `cancelled`.
        """
        heard = asyncio.run_coroutine_threadsafe(self._hear(), self._loop)
        try:
            while not wait([heard], timeout=LOOK_S).done:
                caller.check()
        finally:
            heard.cancel()
        if not (found := heard.result()):
            caller.leave()
            caller.check()
        return {one.file: Sealed(nbytes=one.nbytes, blocks=tuple(one.blocks)) for one in found}

    async def _hear(self) -> Sequence[pb.Shard]:
        """Return what the caller's second message says; nothing if none comes any more."""
        return pb.MaterializeRequest.FromString(await anext(self._messages, b"")).written


class Saver:
    """Writes what this node has of copies, and what it alone can."""

    def __init__(self, node: ManagedNode, *, keys: ClusterKeys) -> None:
        self._node = node
        self._keys = keys
        self.threads = ThreadPoolExecutor(MAX_WRITERS, thread_name_prefix="writer")
        # Of their own, because saves wait for what others write, and hold threads meanwhile.
        self._threads_for_others = ThreadPoolExecutor(MAX_WRITERS, thread_name_prefix="shards")

    def close(self) -> None:
        """Wait for what is being written."""
        self.threads.shutdown()
        self._threads_for_others.shutdown()

    async def materialize(
        self, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[pb.MaterializeReply]:
        """Write a checkpoint; say what others are to write, and how far it is while it gets on."""
        request = pb.MaterializeRequest.FromString(await anext(messages))
        caller, others = WaitingCaller(), Others(messages)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self.threads, self._materialize, request, caller, others)
        asked = asyncio.wrap_future(others.asked)
        try:
            await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                yield asked.result()
            async for reply in _told(work, caller):
                yield reply
        finally:
            caller.leave()
            work.cancel()  # what has not begun never does; what has sees that its caller left

    async def write_shards(
        self, request: pb.WriteShardsRequest
    ) -> AsyncGenerator[pb.MaterializeReply]:
        """Write what another node asks for of its checkpoint; say how far it is."""
        caller, loop = WaitingCaller(), asyncio.get_running_loop()
        threads = self._threads_for_others
        work = loop.run_in_executor(threads, self._write_shards, request, caller)
        try:
            async for reply in _told(work, caller):
                yield reply
        finally:
            caller.leave()
            work.cancel()

    @contextmanager
    def copied(self, copies: pb.PublishedVersion, caller: WaitingCaller) -> Iterator[StateSnapshot]:
        """Return the state that copies of all nodes of a WPG make up, held for the block.

        What other nodes hold comes when it is asked for; what this node holds is read here.
        """
        if not copies.holders:
            raise bad_request("no copy is named to work from; publish one")
        own = self._node.config.node_id

        def came(nbytes: int) -> None:
            caller.advance(nbytes)
            self._node.arrivals.count(nbytes)

        with ExitStack() as stack:
            opened: list[OpenedPart | FarPart] = []
            for holder in sorted(copies.holders, key=lambda one: one.node_id != own):
                if holder.node_id == own:
                    reading = self._node.publisher.reading(VersionId.of(copies))
                    opened.append(stack.enter_context(reading))
                else:
                    far = Far(holder, lambda: self._keys, came)
                    opened.append(FarPart(far, far.read_manifest(copies)))
            yield snapshot.of_copies(opened)

    def _materialize(
        self, request: pb.MaterializeRequest, caller: WaitingCaller, others: Others
    ) -> pb.MaterializeReply:
        self._node.admit(request.fence)
        with (
            self.copied(request.copies, caller) as state,
            _places(request) as (path, model),
            self._noted(request),
        ):
            written = checkpoints.materialize(
                state,
                path,
                model=model,
                base=request.model,
                optimizer=request.optimizer,
                caller=caller,
                tenant=request.tenant,
                about=json.loads(request.about_json or "{}"),
                kept=request.kept,
                write=lambda target, plan: self._write(
                    state, target, plan, caller, others=others, request=request
                ),
            )
        return pb.MaterializeReply(nbytes=written.nbytes, files=written.files)

    def _write(
        self,
        state: StateSnapshot,
        target: Path | str,
        plan: Plan,
        caller: WaitingCaller,
        *,
        others: Others,
        request: pb.MaterializeRequest,
    ) -> Mapping[str, Sealed]:
        """Write what this node has while other nodes write what they have."""
        own = [one for region, some in plan.items() if region not in state.far for one in some]
        shares = [
            pb.Share(node_id=part.opened.manifest.node_id, shards=plan[region])
            for region, part in state.far.items()
            if plan.get(region)
        ]
        if shares:
            directory = str(target)
            if isinstance(target, Path):  # which is an alias
                directory = str(Path(request.path).with_name(target.name))
            others.asked.set_result(pb.MaterializeReply(shares=shares, directory=directory))
        sealed = shards.write(state, target, own, caller)
        return {**sealed, **(others.wait(caller) if shares else {})}

    def _write_shards(
        self, request: pb.WriteShardsRequest, caller: WaitingCaller
    ) -> pb.MaterializeReply:
        self._node.admit(request.fence)
        names = ", ".join(one.file for one in request.shards)
        what = f"node {self._node.config.node_id} did not write {names} in {request.directory}"
        with self.copied(request.copies, caller) as state, ExitStack() as stack:
            target: Path | str = request.directory
            if not object_store.is_url(request.directory):
                place = paths.CheckedPath(path=Path(request.directory), root=Path(request.root))
                try:
                    target = stack.enter_context(paths.opened_directory(place))
                except PlexError as error:
                    raise bad_request(f"{what}: {error.message}; {SHARED}") from error
            try:
                sealed = shards.write(state, target, request.shards, caller)
            except OSError as error:
                raise bad_request(f"{what}: {error}; {SHARED}") from error
        return pb.MaterializeReply(
            nbytes=sum(one.nbytes for one in sealed.values()),
            written=[
                pb.Shard(file=file, nbytes=one.nbytes, blocks=one.blocks)
                for file, one in sealed.items()
            ],
        )

    @contextmanager
    def _noted(self, request: pb.MaterializeRequest) -> Iterator[None]:
        """Have a successor know of a save while it is written: it removes what a kill leaves.

        What is left in an object store is removed by the deployment's next checkpoint.
        """
        if object_store.is_url(request.path):
            yield
            return
        key = (checkpoints.SAVE, secrets.token_hex(8))
        directory = str(Path(request.path).parent)
        self._node.book.put(key, {"directory": directory, "root": request.root})
        try:
            self._node.book.settle()
            yield
        finally:
            self._node.book.drop(key)


async def _told(
    work: asyncio.Future[pb.MaterializeReply], caller: WaitingCaller
) -> AsyncGenerator[pb.MaterializeReply]:
    """Say how far work is while it gets on, and what came of it."""
    told = 0
    while not (await asyncio.wait([work], timeout=PROGRESS_S))[0]:
        if caller.done_bytes > told:
            told = caller.done_bytes
            yield pb.MaterializeReply(nbytes=told)
    try:
        yield work.result()
    except PlexError as error:
        yield pb.MaterializeReply(error=wire_errors.to_wire(error))


@contextmanager
def _places(
    request: pb.MaterializeRequest,
) -> Iterator[tuple[Path | str, Path | None]]:
    """Yield where a checkpoint goes and its model's files, each opened below its root."""
    path: Path | str = request.path
    with ExitStack() as stack:
        if not object_store.is_url(request.path):
            above = paths.CheckedPath(path=Path(request.path).parent, root=Path(request.root))
            parent = stack.enter_context(paths.opened_directory(above, make=True))
            path = parent / Path(request.path).name
        model = None
        if request.model:
            place = paths.CheckedPath(path=Path(request.model), root=Path(request.model_root))
            model = stack.enter_context(paths.view(place, only=checkpoints.is_copied))
        yield path, model

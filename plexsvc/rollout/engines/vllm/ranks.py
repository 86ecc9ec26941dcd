"""Tensor ranks of a vLLM engine: worker processes, each with its part of every weight.

Theory of operation. vLLM forks a worker for each rank out of the engine's process, whose scheduler
tells all of them each step through shared memory. The engine's process verifies a version. Each
rank then opens it by a client of its own and copies just the boxes that fill its tensors, in rounds
between which the engine can tell that it gets on. All ranks have planned before one writes.

Ranks are in the process group of their engine, and the kernel kills them with it. An engine one of
whose ranks died is broken. What they share has no name once all have it open, so nothing is left in
`/dev/shm`, whoever is killed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import vllm.v1.engine.core as vllm_core
from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer
from vllm.v1.executor.multiproc_executor import WorkerProc

from plexclient.wire.errors import from_wire, to_wire
from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1.statemanager_pb2 import PublishedVersion
from plexsvc import paths, progress
from plexsvc.errors import PlexError, bad_request
from plexsvc.rollout.engines import weights
from plexsvc.rollout.engines.model_dir import ModelDir, opened
from plexsvc.rollout.engines.vllm import core as cores
from plexsvc.tether import die_with_parent
from plexsvc.weights.reading import OpenedVersion

FILL_BYTES: Final = 64 << 20
"""What a rank copies at least before it tells that it gets on."""

SHARED: Final = Path("/dev/shm")
QUEUES: Final = "psm_"
COLLECTIVES: Final = "vllm_dist_"
"""How the names begin of what is shared there: by engine and ranks, and by ranks on CPUs."""

OpenVersion: TypeAlias = "Callable[[PublishedVersion], OpenedVersion]"
RankOpener: TypeAlias = "Callable[[int], AbstractContextManager[OpenVersion]]"
"""Opens versions for a rank, by its number, while the context lasts."""


def build(
    config: cores.VllmConfig, model: ModelDir, opener: RankOpener | None
) -> tuple[vllm_core.EngineCore, cores.LiveWeights]:
    """Return a core of one rank, in this process, or of several. Runs on the executor's thread."""
    if config.tp == 1:
        core = cores.build_core(config, model)
        return core, core.collective_rpc(cores.prepare_worker, args=(model,))[0]
    assert opener is not None, "who opens versions for the ranks?"
    with _forking():
        core = cores.build_core(config, model)
        return core, RankWeights(core, model, opener)


class RankWeights:
    """The weights of all ranks, as the engine's process sees them."""

    def __init__(self, core: vllm_core.EngineCore, model: ModelDir, opener: RankOpener) -> None:
        self._core = core
        told = core.collective_rpc(partial(_prepare, model=model, opener=opener))
        self._refusal = next((refusal for refusal, _, _ in told if refusal), "")
        self.device_bytes = sum(nbytes for _, nbytes, _ in told)
        for name in _take_names_away().union(*(names for _, _, names in told)):
            if name.startswith(QUEUES):  # Python's tracker, which ranks share, has each once
                resource_tracker.unregister(f"/{name}", "shared_memory")

    def filling(self, version: OpenedVersion, *, is_on_model: bool) -> Iterator[int]:
        """Have every rank fill its tensors; yield the bytes that all copied in each round.

        Raises:
            PlexError: `bad_request` for what a rank lacks: none has written anything.
        """
        if self._refusal:
            raise cores.not_replaceable(self._refusal)
        published = b"" if version.published is None else version.published.SerializeToString()
        begin = partial(_begin, published=published, is_on_model=is_on_model)
        try:
            for refusal in filter(None, self._core.collective_rpc(begin)):
                raise from_wire(common_pb2.Error.FromString(refusal))
            while nbytes := sum(self._core.collective_rpc(_fill_some)):
                progress.advance()
                yield nbytes
        finally:
            self._core.collective_rpc(_drop)

    def memory(self) -> NoReturn:
        """Refuse to sleep.

        Raises:
            PlexError: `bad_request`.
        """
        raise bad_request("an engine of several tensor ranks does not sleep; deploy it with tp=1")


@contextmanager
def _forking() -> Iterator[None]:
    """Have the workers of a core that is built inside the block die with this process.

    Their files are in a directory that is gone afterwards, and their shared memory has no names.
    """
    parent_pid, main = os.getpid(), WorkerProc.worker_main

    def tied(*args: Any, **named: Any) -> None:
        die_with_parent(parent_pid)
        signal.set_wakeup_fd(-1)  # what wakes the engine's event loop
        main(*args, **named)

    WorkerProc.worker_main = staticmethod(tied)
    ShmRingBuffer.__del__ = _close_nameless
    with paths.temporary() as place:
        before, tempfile.tempdir = tempfile.tempdir, str(place)
        os.environ["VLLM_RPC_BASE_PATH"] = str(place)  # noqa: TID251 - vLLM reads it
        try:
            yield
        except PlexError:
            raise
        except Exception as error:
            raise RuntimeError(f"{error} (the log has what a tensor rank failed with)") from error
        finally:
            tempfile.tempdir = before
            del os.environ["VLLM_RPC_BASE_PATH"]  # noqa: TID251 - vLLM reads it
            WorkerProc.worker_main = staticmethod(main)
            _take_names_away()


def watch(core: vllm_core.EngineCore, on_death: Callable[[], None]) -> None:
    """Call `on_death`, on a thread, when a rank ends before the core is shut down."""
    executor = core.model_executor
    sentinels = [worker.proc.sentinel for worker in executor.workers]

    def wait() -> None:
        connection.wait(sentinels)
        if executor.is_failed or not getattr(executor, "shutting_down", False):
            on_death()

    threading.Thread(target=wait, name="watch-ranks", daemon=True).start()


_original_del: Final = ShmRingBuffer.__del__


def _close_nameless(buffer: ShmRingBuffer) -> None:
    with suppress(FileNotFoundError):
        _original_del(buffer)


def _take_names_away() -> set[str]:
    """Remove the names of the shared memory that this process maps; return them."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    names = {line.partition(f"{SHARED}/")[2].removesuffix(" (deleted)") for line in mapped}
    found = {name for name in names if name.startswith((QUEUES, COLLECTIVES))}
    for name in found:
        (SHARED / name).unlink(missing_ok=True)
    return found


# -- in the processes of the ranks


class _TensorRank:
    """What a rank knows of its weights."""

    def __init__(
        self, found: list[weights.LiveTensor], model: ModelDir, open_: OpenVersion
    ) -> None:
        self.found, self.model, self.open = found, model, open_
        self.filling: Iterator[int] = iter(())


def _prepare(worker: Any, *, model: ModelDir, opener: RankOpener) -> tuple[str, int, set[str]]:
    """Return why weights cannot be replaced, their bytes, and names that shared memory had."""
    prepared = cores.prepare_worker(worker, model)
    open_version = ExitStack().enter_context(opener(worker.global_rank))  # until the process ends
    worker.plex_rank = _TensorRank(prepared.found, model, open_version)
    # Who ends an instance signals its whole group; the engine ends its ranks by a pipe.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return prepared.refusal, prepared.device_bytes, _take_names_away()


def _begin(worker: Any, *, published: bytes, is_on_model: bool) -> bytes:
    """Plan a version, or the model's own; return the error that says why it cannot be."""
    rank: _TensorRank = worker.plex_rank
    try:
        parts = opened(rank.model)
        if published:
            parts = rank.open(PublishedVersion.FromString(published)).parts
        rank.filling = weights.begin(
            rank.found, parts, model=lambda: opened(rank.model), is_on_model=is_on_model
        )
    except PlexError as error:
        return to_wire(error).SerializeToString()
    return b""


def _fill_some(worker: Any) -> int:
    """Fill some of the tensors; return the bytes, 0 when there is none left."""
    written = 0
    for nbytes in worker.plex_rank.filling:
        written += nbytes
        if written >= FILL_BYTES:
            break
    return written


def _drop(worker: Any) -> None:
    worker.plex_rank.filling = iter(())

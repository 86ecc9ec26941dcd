"""Forks real ranks, each with its executor and a fake state client, and relays commands to them.

The parent (a test) starts one host, which preloads the frameworks once; groups of ranks are forked
from it, so that many layouts are tested for one start-up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, cast

import numpy as np

from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2, worker_pb2
from plexsvc.clock import SystemClock
from plexsvc.weights.reading import OpenedPart
from plexsvc.worker.backends import registry
from plexsvc.worker.config import parse
from plexsvc.worker.executor import Executor
from plexsvc.worker.operations import StateMemory
from tests.fakes.fake_state_client import FakeStateClient
from tests.rigs.scarcity import Allocations, LiveBytes

ANSWER_S = 120.0
"""Longest wait for one command of one group."""

ENV = ("OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo")

Pieces = dict[tuple[str, str], list[tuple[bytes, np.ndarray]]]
"""By (kind, name): serialised pieces with what they hold."""


@dataclass(slots=True)
class RankHost:
    """The test's side: one process that forks groups of ranks."""

    process: subprocess.Popen[bytes]
    connection: Connection

    def start(self, configs: Sequence[Mapping[str, Any]]) -> Group:
        """Fork one rank a configuration and build them; raise what a rank raised."""
        number = self._ask(("start", list(configs)))
        return Group(self, number)

    def serve(self, configs: Sequence[Mapping[str, Any]]) -> list[Served]:
        """Fork one `plexsvc.worker.main` a configuration; return when all serve."""
        found = self._ask(("serve", list(configs)))
        return [Served(self, pid=pid, address=address) for pid, address in found]

    def _ask(self, command: tuple[Any, ...]) -> Any:
        self.connection.send(command)
        if not self.connection.poll(ANSWER_S + 10):
            raise TimeoutError(f"the rank host did not answer {command[0]!r}")
        ok, value = self.connection.recv()
        if not ok:
            raise RuntimeError(value)
        return value


@dataclass(frozen=True, slots=True)
class Group:
    """One WPG's ranks."""

    host: RankHost
    number: int

    def ask(self, name: str, *args: object) -> list[Any]:
        """Return every rank's answer to one command, in rank order."""
        return self.host._ask(("ask", self.number, name, args))

    def execute(
        self,
        operation: operations_pb2.Operation,
        published: statemanager_pb2.PublishedVersion | None = None,
    ) -> list[worker_pb2.ExecuteReply]:
        """Run an operation on all ranks at once."""
        data = operation.SerializeToString()
        version = published or statemanager_pb2.PublishedVersion()
        replies = self.ask("execute", data, version.SerializeToString())
        return [worker_pb2.ExecuteReply.FromString(reply) for reply in replies]

    def stop(self) -> None:
        """End the ranks."""
        self.host._ask(("stop", self.number))


@dataclass(frozen=True, slots=True)
class Served:
    """One rank process that serves gRPC."""

    host: RankHost
    pid: int
    address: str

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code once the process has ended, negative for a signal."""
        return int(self.host._ask(("wait", self.pid)))


@contextlib.contextmanager
def start_rank_host(preload: str = "plexsvc.worker.preload") -> Iterator[RankHost]:
    """Start a host whose ranks have `preload` imported."""
    here, there = Pipe()
    process = subprocess.Popen(
        ["env", *ENV, sys.executable, "-m", "tests.rigs.rank_host", str(there.fileno()), preload],
        pass_fds=[there.fileno()],
    )
    there.close()
    try:
        yield RankHost(process, here)
    finally:
        here.close()  # the host sees the end of its connection, ends its ranks and exits
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


StartGroup = Callable[..., Group]
Ranks = dict[int, list[tuple[int, Connection]]]

# -- the host's side ---------------------------------------------------------------------------


def _host(fd: int, preload: str) -> None:
    gc.disable()
    importlib.import_module(preload)
    gc.enable()
    gc.freeze()  # ranks that start over collect garbage, and frameworks are none
    connection = Connection(fd)
    groups: Ranks = {}
    try:
        while True:
            command = connection.recv()
            try:
                connection.send((True, _serve(command, groups)))
            except Exception as error:  # noqa: BLE001 - relayed to the test
                connection.send((False, f"{type(error).__name__}: {error}"))
    except EOFError:
        pass
    finally:
        for ranks in groups.values():
            _kill(ranks)
        os._exit(0)


def _serve(command: tuple[Any, ...], groups: Ranks) -> Any:
    match command:
        case ("start", configs):
            number = len(groups)
            groups[number] = [_fork(config, _rank) for config in configs]
            _collect(groups[number])
            return number
        case ("ask", number, name, args):
            for _, pipe in groups[number]:
                pipe.send((name, args))
            return _collect(groups[number])
        case ("serve", configs):
            ranks = [_fork(config, _serve_rank) for config in configs]
            groups[-len(groups) - 1] = ranks
            addresses = _collect(ranks)
            return [(pid, address) for (pid, _), address in zip(ranks, addresses, strict=True)]
        case ("wait", pid):
            return _reap(pid, groups)
        case ("stop", number):
            _kill(groups[number])
            groups[number] = []
            return None
        case _:
            raise ValueError(command)


def _collect(ranks: list[tuple[int, Connection]]) -> list[Any]:
    answers: list[Any] = []
    failures: list[str] = []
    for rank, (_, pipe) in enumerate(ranks):
        if not pipe.poll(ANSWER_S):
            raise TimeoutError(f"rank {rank} did not answer in {ANSWER_S} s")
        ok, value = pipe.recv()
        (answers if ok else failures).append(value)
    if failures:
        raise RuntimeError("\n".join(failures))
    return answers


def _kill(ranks: list[tuple[int, Connection]]) -> None:
    for pid, pipe in ranks:
        pipe.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _reap(pid: int, groups: Ranks) -> int:
    _, status = os.waitpid(pid, 0)
    for number, ranks in groups.items():
        groups[number] = [rank for rank in ranks if rank[0] != pid]
    return os.waitstatus_to_exitcode(status)


def _serve_rank(config: Mapping[str, Any], pipe: Connection) -> None:
    from plexsvc.worker import main

    main.main(config, lambda address: pipe.send((True, address)))


def _fork(
    config: Mapping[str, Any], run: Callable[[Mapping[str, Any], Connection], None]
) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        run(config, theirs)
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:  # noqa: BLE001 - the child's outermost frame
        traceback.print_exc()
    finally:
        os._exit(code)


def _rank(config: Mapping[str, Any], pipe: Connection) -> None:
    rank: _Rank | None = None
    call: Callable[..., Any] = _Rank
    args: tuple[Any, ...] = (config,)
    with contextlib.suppress(EOFError):
        while True:
            try:
                answer = call(*args)
                rank, answer = (answer, None) if rank is None else (rank, answer)
                pipe.send((True, answer))
            except Exception:  # noqa: BLE001 - relayed to the test
                pipe.send((False, traceback.format_exc()))
            name, args = pipe.recv()
            call = getattr(rank, name)


class _Rank:
    """One rank: what `plexsvc.worker.main` wires up, without gRPC."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        parsed = parse(config)
        self.backend = registry.create(parsed)
        self.rank = parsed.rank
        self.executor = Executor(parsed, self.backend, clock=SystemClock())
        self.client = FakeStateClient(self.executor)
        self.executor.build(cast("StateMemory", self.client))  # its regions are fakes too
        self.fails_at: int | None = None

    def execute(self, operation: bytes, published: bytes) -> bytes:
        request = worker_pb2.ExecuteRequest(
            operation=operations_pb2.Operation.FromString(operation),
            published=statemanager_pb2.PublishedVersion.FromString(published),
        )
        fails_at, self.fails_at = self.fails_at, None
        with contextlib.nullcontext() if fails_at is None else Allocations(fails_at=fails_at):
            outcome = self.executor.execute(request)
        return outcome.reply.SerializeToString()

    def allocations(self, operation: bytes) -> int:
        """Run an operation that must succeed; return how often it allocated memory."""
        with Allocations() as made:
            self._succeed(operation)
        return made.count

    def measured(self, operation: bytes) -> int:
        """Run an operation that must succeed; return the most bytes that it held at once."""
        with LiveBytes() as live:
            self._succeed(operation)
        return live.most

    def _succeed(self, operation: bytes) -> None:
        reply = worker_pb2.ExecuteReply.FromString(self.execute(operation, b""))
        assert not reply.result.error.code, reply.result.error.message

    def run_out(self, rank: int, at: int) -> None:
        """Let one rank's next operation find no memory at its allocation number `at`."""
        self.fails_at = at if rank == self.rank else None

    def park(self) -> dict[str, int]:
        return self.client.park()

    def unpark(self) -> None:
        self.client.unpark()

    def device_bytes(self) -> int:
        shared = self.executor.shared
        return self.executor.device_bytes + (shared.nbytes if shared is not None else 0)

    def held(self) -> Pieces:
        """Return every piece of this rank with its values."""
        found: Pieces = {}
        for piece in self.client.pieces:
            values = self.client.read(piece).float().numpy()
            found.setdefault((piece.kind, piece.name), []).append(
                (piece.SerializeToString(), values)
            )
        return found

    def raw(self) -> dict[str, bytes]:
        """Return every region's bytes."""
        return {name: bytes(r.tensor().numpy()) for name, r in self.client.regions.items()}

    def publish(self, deployment_id: str, version: int) -> tuple[bytes, bytes]:
        """Return the manifest of a frozen version and its bytes."""
        published = self.client.publish(deployment_id, version)
        return published.manifest.SerializeToString(), bytes(published.data)

    def adopt_version(self, manifest: bytes, data: bytes) -> None:
        parsed = statemanager_pb2.VersionManifest.FromString(manifest)
        published = OpenedPart(manifest=parsed, data=memoryview(data))
        self.client.versions[parsed.deployment_id, parsed.version] = published

    def staged(self, staging_id: bytes) -> bytes:
        return bytes(self.client.staged[staging_id][1])

    def stage(self, staging_id: bytes, bundle: bytes) -> None:
        parsed = common_pb2.TensorBundle.FromString(bundle)
        self.client.staged[staging_id] = (list(parsed.tensors), bytearray(parsed.data))

    def fill_staging(self, rank: int) -> None:
        """Let the next result of one rank find no room."""
        self.client.full_for = int(rank == self.rank)

    def scalars(self) -> dict[str, Any]:
        return dict(self.backend.scalars())

    def reduce_grads(self) -> None:
        """Sum gradients over ranks as `step` does, for tests that look at them (megatron)."""
        from megatron.core.distributed import (
            finalize_model_grads,
        )

        trained = self.backend._trained  # type: ignore[attr-defined]  # megatron's
        finalize_model_grads([trained.ddp], None)


if __name__ == "__main__":
    _host(int(sys.argv[1]), sys.argv[2])

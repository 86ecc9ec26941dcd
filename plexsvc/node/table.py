"""The node's process table: starts each rank once per incarnation, stops it, records its end.

Theory of operation. A rank is ordered from its image's zygote, forked, ready, ended; any step may
be the last. The key is (proc_id, incarnation): a repeated spawn waits for the first's outcome or is
answered from the record; a newer incarnation first kills the older; an older one is refused. A
process that existed leaves exactly one `ProcExited` event, after the kernel has let it go.

Ranks whose specifications share an engine have seats in one process, which is forked for the first
and ended after the last. It is no rank itself. What kills one of its seats kills it, and so all.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, assert_never

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError, bad_request, internal, queue_full
from plexsvc.fencing import refuse_older
from plexsvc.log import Log
from plexsvc.node import gpus, logs, seats
from plexsvc.node.config import AgentConfig
from plexsvc.node.event_log import EventLog
from plexsvc.node.messages import Forked, ForkOrder, Preloaded, Refused, Report
from plexsvc.node.ranks import RankProcess, bury_group, died
from plexsvc.node.warm import WarmImage
from plexsvc.rpc.keys import ClusterKeys

log = Log(__name__)

KILL_WAIT_S: Final = 10.0
"""How long the kernel may take to let go of killed ranks."""

STACKS_S: Final = 0.2
"""How long a process that hangs has to write its stacks."""

MAX_STACKS_BYTES: Final = 1 << 15
SHOWN_CALLS: Final = 6
"""How many lines of a thread's stack an error shows: the innermost calls come first."""

MAX_READY_BYTES: Final = 4096
"""Longest address, which comes in one write."""


class RankTable:
    """All processes this agent has started, living ones and a bounded record of ended ones."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        tasks: asyncio.TaskGroup,
        events: EventLog,
        log_dir: Path,
        keys: ClusterKeys,
    ) -> None:
        self._config, self._keys = config, keys
        self._tasks = tasks
        self._events = events
        self._log_dir = log_dir
        self._tokens = itertools.count(1)
        self._life = secrets.token_hex(3)
        for left in config.runtime_dir.glob("p??????-*.*"):  # of an agent before this one
            left.unlink(missing_ok=True)
        self._by_id: dict[str, RankProcess] = {}
        self._by_token: dict[int, RankProcess] = {}
        self._images: Mapping[str, WarmImage] = {}

    def use(self, images: Mapping[str, WarmImage]) -> None:
        """Fork from `images`, by the name that `ProcSpec.image` gives."""
        self._images = images

    def living(self) -> list[RankProcess]:
        """Return the ranks that have not ended, oldest first, and the engines of some."""
        return list(self._by_token.values())

    async def spawn(self, spec: node_pb2.ProcSpec, *, incarnation: int) -> RankProcess:
        """Return the rank once it is ready; a repeat starts nothing.

        Raises:
            PlexError: `stale_fence` for an older incarnation; `bad_request` for an unknown image or
                malformed configuration; `queue_full` above `max_processes`; `worker_died` with exit
                code, signal and log tail when it ended, or was not ready in time.
        """
        rank = self._by_id.get(spec.proc_id)
        if rank is not None:
            what = f"spawn of {spec.proc_id}"
            refuse_older(what, "incarnation", given=incarnation, seen=rank.incarnation)
        if rank is None or rank.incarnation < incarnation:
            rank = self._begin(spec, incarnation=incarnation, older=rank)
        await rank.settled.wait()
        if rank.error is not None:
            raise rank.error
        return rank

    async def stop(self, proc_id: str, *, incarnation: int, grace_us: int) -> None:
        """End a process: TERM to its group, KILL after `grace_us`; return when it is gone.

        One that does not end by itself hangs: before KILL it writes its stacks to its log.
        A process that is unknown, has ended, or is of a newer incarnation is left as it is.
        """
        rank = self._by_id.get(proc_id)
        if rank is None or rank.ended.is_set() or 0 < incarnation < rank.incarnation:
            return
        if rank.engine is None or await self._leave(rank, rank.engine):
            await self._end(rank.engine or rank, grace_us=grace_us)

    async def _end(self, rank: RankProcess, *, grace_us: int) -> None:
        self._doom(rank, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_us / 1e6):
                await rank.ended.wait()
        except TimeoutError:
            log.warning("process hangs; its stacks are in its log", proc_id=rank.spec.proc_id)
            await self._write_stacks(rank)
            await self.kill([rank])

    async def write_stacks(self, proc_id: str) -> tuple[str, str]:
        """Have a process write its stacks to its log; return that log and where its threads are.

        Of a process that is unknown or has ended there is nothing.
        """
        rank = self._by_id.get(proc_id)
        if rank is None or rank.ended.is_set():
            return "", ""
        return await self._write_stacks(rank.engine or rank)

    async def _write_stacks(self, rank: RankProcess) -> tuple[str, str]:
        begins = rank.log_path.stat().st_size if rank.log_path.exists() else 0
        rank.write_stacks()
        with suppress(TimeoutError):
            async with asyncio.timeout(STACKS_S):
                await rank.ended.wait()
        written = logs.tail(rank.log_path, num_bytes=MAX_STACKS_BYTES, begins=begins)
        innermost = ("\n".join(one.splitlines()[:SHOWN_CALLS]) for one in written.split("\n\n"))
        return str(rank.log_path), "\n".join(innermost)

    async def kill(self, ranks: list[RankProcess]) -> None:
        """Kill `ranks` at once; return when they are gone.

        Raises:
            TimeoutError: the kernel did not let them go within `KILL_WAIT_S`.
        """
        for rank in ranks:
            self._doom(rank, signal.SIGKILL)
        async with asyncio.timeout(KILL_WAIT_S):
            await asyncio.gather(*(rank.ended.wait() for rank in ranks))

    def on_report(self, image: str, report: Report) -> None:
        """Take what the zygote of `image` says."""
        match report:
            case Preloaded():
                log.debug("image warm", image=image)
            case Forked():
                self._forked(self._by_token[report.token], pid=report.pid)
            case Refused():
                rank = self._by_token.pop(report.token)
                self._stop_listening(rank)
                message = f"{rank.spec.proc_id} not started: {report.reason}"
                rank.fail(internal(message, worker=rank.spec.proc_id))
            case _ as never:
                assert_never(never)

    async def on_lost(self, image: str) -> None:
        """Have the next zygote fork what one that died was to: it said all that it had forked."""
        for rank in self.living():
            if rank.spec.image == image and rank.is_ordered and rank.pid == 0:
                if rank.is_doomed:  # nobody wants it any more
                    self._abandon(rank, _stopped_early(rank))
                    continue
                self._stop_listening(rank)
                rank.is_ordered = False
                rank.lost.set()

    def _name(self, token: int) -> str:
        """Return a name that no process of an agent before this one had.

        Who still calls one of those must not reach another process in its place.
        """
        return f"p{self._life}-{token}"

    def _file(self, rank: RankProcess, kind: str) -> Path:
        return self._config.runtime_dir / f"{self._name(rank.token)}.{kind}"

    def _begin(
        self, spec: node_pb2.ProcSpec, *, incarnation: int, older: RankProcess | None
    ) -> RankProcess:
        config = self._checked_config(spec)
        self._forget_old_records()
        token = next(self._tokens)
        config["listen"] = self._config.address(self._name(token))
        config["keys_file"] = str(self._config.keys_file)
        if spec.image == "reward":
            config["gpus"] = gpus.of_rewards(self._config.devices)
        elif spec.image == "manager":
            config["records_dir"] = str(self._log_dir / f"records-{spec.rank}")
        rank = RankProcess(
            spec=spec,
            incarnation=incarnation,
            token=token,
            log_path=logs.log_path(self._log_dir, proc_id=spec.proc_id, incarnation=incarnation),
        )
        self._by_id[spec.proc_id] = rank
        self._by_token[rank.token] = rank
        self._tasks.create_task(self._start(rank, config=config, older=older))
        return rank

    async def _start(
        self, rank: RankProcess, *, config: Mapping[str, Any], older: RankProcess | None
    ) -> None:
        """Bring `rank` to its settled state, within `ready_timeout_us`."""
        try:
            async with asyncio.timeout(self._config.ready_timeout_us / 1e6):
                if older is not None and not older.ended.is_set():
                    await self.kill([older])
                while not rank.settled.is_set():
                    if rank.spec.shares:
                        engine = self._seated(rank, config)
                        await engine.settled.wait()
                        if not rank.settled.is_set():
                            await self._sit_down(rank, engine, config)
                    else:
                        await self._images[rank.spec.image].wait_warm()
                        self._order(rank, config=config)
                        await rank.until_settled_or_lost()
        except TimeoutError:
            await self._give_up(rank)
        except PlexError as error:
            if rank.engine is not None and rank in rank.engine.seats:
                rank.engine.seats.remove(rank)
                if not rank.engine.seats:
                    self._doom(rank.engine, signal.SIGTERM)
            self._abandon(rank, error)

    async def _sit_down(
        self, rank: RankProcess, engine: RankProcess, config: Mapping[str, Any]
    ) -> None:
        """Open a rank's instance in an engine; leave an engine that is full.

        Raises:
            PlexError: why the engine does not run, or has no seat for it.
        """
        if engine.error is not None:
            raise engine.error
        rank.pid = engine.pid
        try:
            address = await seats.take(engine, rank.spec.proc_id, config, keys=self._keys)
        except PlexError as error:
            if error.code is not ErrorCode.QUEUE_FULL:
                raise
            engine.is_full = True
            engine.seats.remove(rank)
            return
        if rank.settled.is_set():  # stopped meanwhile
            await seats.leave(engine, rank.spec.proc_id, keys=self._keys)
        else:
            self._ready(rank, address=address)

    def _seated(self, rank: RankProcess, config: Mapping[str, Any]) -> RankProcess:
        """Return the engine in which a rank is to have a seat, started if there is none.

        Ranks of one WPG have engines of their own: it asked for several.
        """
        environment = gpus.environment(self._config.devices, int(config["device_index"]))
        key = f"{rank.spec.shares} {sorted(environment.items())}"
        found = (one for one in self.living() if one.shares == key)
        engine = next((one for one in found if _has_room(one, rank)), None)
        if engine is None:
            engine = self._begin_engine(rank.spec.image, config, key=key)
        engine.seats.append(rank)
        rank.engine, rank.log_path = engine, engine.log_path
        return engine

    def _begin_engine(self, image: str, config: Mapping[str, Any], *, key: str) -> RankProcess:
        token = next(self._tokens)
        name = f"engine-{token}"
        nobodys = {"wpg_id": name, "deployment_id": "", "job_id": "", "tenant": ""}
        listens = {"listen": self._config.address(self._name(token))}
        engine = RankProcess(
            spec=node_pb2.ProcSpec(proc_id=f"{name}/0", image=image, wpg_id=name),
            incarnation=1,
            token=token,
            log_path=logs.log_path(self._log_dir, proc_id=f"{name}/0", incarnation=1),
            shares=key,
        )
        self._by_token[token] = engine
        self._tasks.create_task(
            self._start(engine, config={**config, **nobodys, **listens}, older=None)
        )
        return engine

    async def _leave(self, rank: RankProcess, engine: RankProcess) -> bool:
        """Have a rank leave its seat; return whether its engine is of no use any more."""
        if engine.settled.is_set() and not engine.ended.is_set():
            try:
                await seats.leave(engine, rank.spec.proc_id, keys=self._keys)
            except PlexError as error:
                log.warning("engine ends: it does not let a seat go", error=error)
                return True
        if rank.ended.is_set():  # with its engine
            return False
        engine.seats.remove(rank)
        engine.is_full = False
        self._end_seat(rank)
        return not engine.seats

    def _end_seat(self, rank: RankProcess, engine: node_pb2.ProcExited | None = None) -> None:
        """Record the end of a seat: by itself, or with its engine."""
        event = node_pb2.ProcExited()
        if engine is not None:
            event.CopyFrom(engine)
        event.proc_id, event.incarnation = rank.spec.proc_id, rank.incarnation
        self._by_token.pop(rank.token, None)
        rank.fail(died(event, was_ready=bool(rank.address)))
        self._file(rank, "sock").unlink(missing_ok=True)
        self._events.append(node_pb2.NodeEvent(exited=event))

    def _order(self, rank: RankProcess, *, config: Mapping[str, Any]) -> None:
        if rank.is_doomed:
            raise _stopped_early(rank)
        image = self._images[rank.spec.image]
        index = config.get("device_index")
        image.send(
            ForkOrder(
                token=rank.token,
                name=rank.spec.proc_id,
                entrypoint=image.entrypoint,
                config=config,
                env=({} if index is None else gpus.environment(self._config.devices, int(index))),
                log_path=str(rank.log_path),
                ready_path=str(self._listen_for(rank)),
            )
        )
        rank.is_ordered = True
        rank.lost.clear()

    def _doom(self, rank: RankProcess, number: signal.Signals) -> None:
        rank.is_doomed = True
        if rank.engine is not None:
            self._doom(rank.engine, number)
        elif rank.is_ordered:
            rank.send_signal(number)
        else:
            self._abandon(rank, _stopped_early(rank))

    def _abandon(self, rank: RankProcess, error: PlexError) -> None:
        """Record that `rank` was never forked."""
        self._stop_listening(rank)
        self._by_token.pop(rank.token, None)
        rank.fail(error)
        for seat in rank.seats:
            self._abandon(seat, error)

    async def _give_up(self, rank: RankProcess) -> None:
        """End a rank that was not ready in time."""
        rank.error = PlexError(
            ErrorCode.WORKER_DIED,
            f"{rank.spec.proc_id} was not ready within {self._config.ready_timeout_us} us "
            f"(node.ready_timeout_us) and was killed; its log ends:\n{logs.tail(rank.log_path)}",
            worker=rank.spec.proc_id,
            log_tail=logs.tail(rank.log_path),
        )
        if rank.is_ordered and rank.pid == 0:  # a zygote that is stopped forks for nobody else
            self._images[rank.spec.image].kill()
        with suppress(TimeoutError):  # what the kernel does not let go of costs no other process
            await self.kill([rank])
        rank.settled.set()

    def _listen_for(self, rank: RankProcess) -> Path:
        """Return the pipe in which `rank` will say where it serves; it is read from now on."""
        path = self._file(rank, "ready")
        os.mkfifo(path, 0o600)
        rank.ready_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(rank.ready_fd, self._read_ready, rank)
        return path

    def _read_ready(self, rank: RankProcess) -> None:
        """Take what a rank says; a line is its address, an end of file its silence."""
        try:
            rank.said += os.read(rank.ready_fd, MAX_READY_BYTES)
        except BlockingIOError:
            return
        self._stop_listening(rank)
        if b"\n" in rank.said:
            self._ready(rank, address=bytes(rank.said).split(b"\n", 1)[0].decode())

    def _stop_listening(self, rank: RankProcess) -> None:
        if rank.ready_fd >= 0:
            asyncio.get_running_loop().remove_reader(rank.ready_fd)
            os.close(rank.ready_fd)
            rank.ready_fd = -1
            self._file(rank, "ready").unlink(missing_ok=True)

    def _ready(self, rank: RankProcess, *, address: str) -> None:
        rank.address = address
        rank.settled.set()
        if rank.shares:
            return
        ready = node_pb2.ProcReady(
            proc_id=rank.spec.proc_id, address=address, incarnation=rank.incarnation
        )
        self._events.append(node_pb2.NodeEvent(ready=ready))

    def _forked(self, rank: RankProcess, *, pid: int) -> None:
        rank.forked(pid)
        asyncio.get_running_loop().add_reader(rank.pidfd, self._exited, rank)

    def _exited(self, rank: RankProcess) -> None:
        """Record the end of a rank, which the kernel has let go."""
        asyncio.get_running_loop().remove_reader(rank.pidfd)
        if rank.ready_fd >= 0:
            self._read_ready(rank)  # it may have said so just before
        self._stop_listening(rank)
        del self._by_token[rank.token]
        event = rank.reap()
        bury_group(rank.pid)
        for kind in ("sock", "orders"):  # what it listened on outlives it
            self._file(rank, kind).unlink(missing_ok=True)
        log.info(
            "rank exited", proc_id=event.proc_id, exit_code=event.exit_code, signal=event.signal
        )
        if not rank.shares:
            self._events.append(node_pb2.NodeEvent(exited=event))
        for seat in rank.seats:
            self._end_seat(seat, event)

    def _checked_config(self, spec: node_pb2.ProcSpec) -> dict[str, Any]:
        if spec.image not in self._images:
            raise bad_request(
                f"{spec.proc_id}: no image {spec.image!r} on this node; "
                f"it has {', '.join(sorted(self._images))} (node.images)"
            )
        if len(self._by_token) >= self._config.max_processes:
            raise queue_full(
                f"{spec.proc_id} not started: {self._config.max_processes} processes run on this "
                "node; stop some and spawn again",
                limit=self._config.max_processes,
            )
        try:
            config = json.loads(spec.config_json or "{}")
        except json.JSONDecodeError as error:
            raise bad_request(f"{spec.proc_id}: config_json is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise bad_request(f"{spec.proc_id}: config_json is not an object")
        return config

    def _forget_old_records(self) -> None:
        ended = [proc_id for proc_id, rank in self._by_id.items() if rank.ended.is_set()]
        # One more, because the caller adds one.
        for proc_id in ended[: max(0, len(ended) - self._config.max_records + 1)]:
            del self._by_id[proc_id]
        keep = {rank.log_path for rank in self.living()}
        logs.prune(self._log_dir, max_logs=self._config.max_logs, keep=keep)


def _stopped_early(rank: RankProcess) -> PlexError:
    return PlexError(ErrorCode.CANCELLED, f"{rank.spec.proc_id} was stopped before it was forked")


def _has_room(engine: RankProcess, rank: RankProcess) -> bool:
    """Whether a rank may have a seat in an engine."""
    is_going = engine.is_doomed or engine.ended.is_set() or engine.is_full
    return not is_going and all(one.spec.wpg_id != rank.spec.wpg_id for one in engine.seats)

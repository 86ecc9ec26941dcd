"""Process of the planner: `python -m plexsvc.reward.planner --config FILE --parent-death PID`.

The file holds the keys of `RewardServiceConfig`. It plans when the proxy asks, and keeps what it
knows of jobs in files, one for each job's program, so that it knows them after a restart too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.log import Log
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.planner import MAX_HISTORIES, Aims, PlannerCore, lasts_us
from plexsvc.reward.plans import PAUSE_US, SERVICE, EndedBatch, PlanAnswer, PlanQuery
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.services import add_servicer

log = Log(__name__)

STOP_GRACE_S: Final = 0.5


class HistoryFiles:
    """What is known of each job's program, a file each; the oldest go first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory

    def read(self) -> list[EndedBatch]:
        """Return all, the oldest first; a file that cannot be read is left out and deleted."""
        found: list[EndedBatch] = []
        for path in self._oldest_first():
            try:
                found.append(msgspec.msgpack.decode(path.read_bytes(), type=EndedBatch))
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("a job's history is lost", path=str(path), error=error)
                path.unlink(missing_ok=True)
        return found

    def write(self, batch: EndedBatch) -> None:
        """Keep a batch in place of the one before it, in one step."""
        name = hashlib.sha256(msgspec.msgpack.encode(batch.key)).hexdigest()
        unfinished = self._directory / f".{name}"
        unfinished.write_bytes(msgspec.msgpack.encode(batch))
        unfinished.replace(self._directory / name)
        for path in self._oldest_first()[:-MAX_HISTORIES]:
            path.unlink(missing_ok=True)

    def _oldest_first(self) -> Sequence[Path]:
        kept = (path for path in self._directory.iterdir() if not path.name.startswith("."))
        return sorted(kept, key=lambda path: (path.stat().st_mtime_ns, path.name))


class PlannerProcess:
    """Answers the proxy's questions."""

    def __init__(self, config: RewardServiceConfig) -> None:
        held_us = config.plan_every_us + PAUSE_US + config.spare_us
        self.core = PlannerCore(
            Aims(
                max_delay_us=config.max_delay_us,
                timeout_share=config.timeout_share,
                held_us=held_us,
            )
        )
        self._files = HistoryFiles(config.history_dir)
        for batch in self._files.read():
            self.core.remember(batch.key, batch.history)

    async def plan(self, request: pb.PlanRequest) -> pb.PlanReply:
        """Take note of batches that ended, and return the plan of what is under way."""
        query = msgspec.msgpack.decode(request.query, type=PlanQuery)
        for batch in query.ended:
            self._remember(batch)
        histories = self.core.histories if query.is_first else {}
        answer = PlanAnswer(
            pools=list(self.core.plan(query.facts).items()),
            lasts_us=[(key, lasts_us(history)) for key, history in histories.items()],
        )
        return pb.PlanReply(answer=msgspec.msgpack.encode(answer))

    def _remember(self, batch: EndedBatch) -> None:
        self.core.remember(batch.key, batch.history)
        try:
            self._files.write(EndedBatch(batch.key, self.core.histories[batch.key]))
        except OSError as error:
            log.warning("a job's history is not kept over a restart", error=error)


@asynccontextmanager
async def serving(config: RewardServiceConfig) -> AsyncIterator[str]:
    """Serve a planner; yield its address.

    Raises:
        PlexError: `bad_request` when it cannot listen or has no keys.
    """
    keys = read_keys(config.keys_file)
    planner = PlannerProcess(config)
    server = new_server(keys)
    add_servicer(server, SERVICE, planner)
    address = listen(server, config.planner, keys, key="reward.planner")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(STOP_GRACE_S)


if __name__ == "__main__":
    sys.exit(loops.serve(RewardServiceConfig, serving))

"""What the process table does when a zygote or the kernel does not do what it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node import table as tables
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.event_log import EventLog
from plexsvc.node.messages import ForkOrder
from plexsvc.node.table import RankTable
from plexsvc.node.warm import WarmImage
from tests.rigs.keys import KEYS


class FakeImage:
    """A zygote that is stopped: it takes orders and answers none."""

    entrypoint = "m:f"
    is_killed = False

    async def wait_warm(self) -> None:
        return

    def send(self, order: ForkOrder) -> None:
        del order

    def kill(self) -> None:
        self.is_killed = True


async def test_a_zygote_that_answers_no_order_costs_that_process_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KILL_WAIT_S", 0.05)
    config = AgentConfig(
        node_id="n",
        devices=(DeviceConfig(kind="train", bytes_total=1 << 20),),
        runtime_dir=tmp_path,
        keys_file=tmp_path / "keys.json",
        ready_timeout_us=50_000,
    )
    async with asyncio.TaskGroup() as tasks:
        table = RankTable(
            config, tasks=tasks, events=EventLog(limit=9), log_dir=tmp_path, keys=KEYS
        )
        zygote = FakeImage()
        table.use({"train": cast("WarmImage", zygote)})
        spec = node_pb2.ProcSpec(proc_id="w/0", image="train")
        with pytest.raises(PlexError, match="was not ready within") as refused:
            await table.spawn(spec, incarnation=1)
        assert refused.value.code is ErrorCode.WORKER_DIED
        (rank,) = table.living()
        assert rank.is_doomed, "it ends as soon as it is forked"
        assert zygote.is_killed, "the next one forks again"
        await table.on_lost("train")
        assert table.living() == []

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
from plexsvc.rpc.addresses import socket_path
from tests.rigs.keys import KEYS


class FakeImage:
    """A zygote that is stopped: it takes orders and answers none."""

    entrypoint = "m:f"
    is_killed = False

    def __init__(self) -> None:
        self.orders: list[ForkOrder] = []

    async def wait_warm(self) -> None:
        return

    def send(self, order: ForkOrder) -> None:
        self.orders.append(order)

    def kill(self) -> None:
        self.is_killed = True


def agent_config(runtime_dir: Path) -> AgentConfig:
    return AgentConfig(
        node_id="n",
        devices=(DeviceConfig(kind="train", bytes_total=1 << 20),),
        runtime_dir=runtime_dir,
        keys_file=runtime_dir / "keys.json",
        ready_timeout_us=50_000,
    )


async def test_a_zygote_that_answers_no_order_costs_that_process_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KILL_WAIT_S", 0.05)
    config = agent_config(tmp_path)
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


async def test_no_process_listens_where_one_of_an_agent_before_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who still calls that one must find nobody, not another process."""
    monkeypatch.setattr(tables, "KILL_WAIT_S", 0.05)
    listened: list[Path] = []
    for _ in range(2):
        async with asyncio.TaskGroup() as tasks:
            table = RankTable(
                agent_config(tmp_path),
                tasks=tasks,
                events=EventLog(limit=9),
                log_dir=tmp_path,
                keys=KEYS,
            )
            assert not any(one.exists() for one in listened), "what is left is removed"
            zygote = FakeImage()
            table.use({"train": cast("WarmImage", zygote)})
            with pytest.raises(PlexError, match="was not ready within"):
                await table.spawn(node_pb2.ProcSpec(proc_id="w/0", image="train"), incarnation=1)
            (order,) = zygote.orders
            place = socket_path(order.config["listen"])
            assert place is not None
            place.touch()
            listened.append(place)
            await table.on_lost("train")
    assert len(set(listened)) == 2

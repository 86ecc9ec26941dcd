"""The planner's process: what it remembers, and what the proxy does with and without it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexclient.wire.v1 import reward_pb2_grpc
from plexsvc.ids import JobId, TenantId
from plexsvc.node import toml
from plexsvc.node.agent_process import AgentProcess
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.planning import History
from plexsvc.reward.core.vocabulary import LEAST
from plexsvc.reward.main import serving
from plexsvc.reward.planner import HistoryFiles
from plexsvc.reward.plans import EndedBatch
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import write_keys
from tests.process.reward.test_main import Served, asked, endless, until
from tests.rigs.keys import KEYS

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> RewardServiceConfig:
    place = tmp_path_factory.mktemp("p", numbered=True)
    write_keys(place / "keys.json", KEYS)
    return RewardServiceConfig(
        listen=f"unix:{place}/p.sock",
        planner=f"unix:{place}/q.sock",
        keys_file=place / "keys.json",
        programs_dir=place / "programs",
        history_dir=place / "history",
        plan_every_us=300_000,
        max_workers=2,
    )


@asynccontextmanager
async def planner(config: RewardServiceConfig) -> AsyncIterator[AgentProcess]:
    path = config.keys_file.with_name("reward.toml")
    path.write_text(toml.dumps(config))
    argv = (sys.executable, "-m", "plexsvc.reward.planner", "--config", str(path))
    process = AgentProcess(
        (*argv, "--parent-death", str(os.getpid())), log_path=path.with_suffix(".log")
    )
    async with asyncio.timeout(120):
        assert b"address" in await process.read_line()
    try:
        yield process
    finally:
        await process.end(grace_s=5)


@asynccontextmanager
async def proxied(config: RewardServiceConfig) -> AsyncIterator[Served]:
    async with serving(config) as (proxy, address), open_channel(address, KEYS) as channel:
        yield Served(proxy, reward_pb2_grpc.RewardStub(channel))


def batch(name: bytes, texts: int) -> pb.ScoreRequest:
    return asked("exact", ["4"] * texts, ["4"] * texts, batch=name * 16)


async def test_a_batch_is_planned_by_the_jobs_last_one(config: RewardServiceConfig) -> None:
    key = (TenantId("acme"), JobId("job-1"), "regex")
    samples = [(0, (2_000_000,)), (0, (2_000_000,))]
    HistoryFiles(config.history_dir).write(EndedBatch(key, History(samples=samples)))
    async with planner(config), proxied(config) as live:
        call = live.stub.Score(endless(["a" * 40] * 2), timeout=120)
        pool = live.proxy.core.pools[LEAST]
        await until(lambda: pool.plan is not None)
        view = await live.stub.GetRewards(pb.GetRewardsRequest(tenant="acme"))
        call.cancel()
    assert pool.plan is not None
    assert (pool.plan.workers, pool.plan.held, pool.plan.is_met) == (2, 2, True)
    assert (view.pools[0].planned, view.pools[0].held) == (2, 2)


async def test_a_planner_that_dies_costs_nothing_but_the_plan(config: RewardServiceConfig) -> None:
    async with proxied(config) as live:
        async with planner(config) as process:
            await live.score(batch(b"a", 50))
            await until(lambda: HistoryFiles(config.history_dir).read())
            process.kill()
            await process.wait()
            found = await live.score(batch(b"b", 50))
            assert [reply.score for reply in found.values()] == [1.0] * 50
        async with planner(config):
            await live.score(batch(b"c", 50))
            await live.score(batch(b"d", 50))
            await until(lambda: len(HistoryFiles(config.history_dir).read()) == 1)


async def test_a_new_proxy_expects_batches_as_the_planner_knows_them(
    config: RewardServiceConfig,
) -> None:
    key = (TenantId("acme"), JobId("job-1"), "exact")
    samples = [(0, (2_000_000,)), (500_000, (9_000_000,))]
    HistoryFiles(config.history_dir).write(EndedBatch(key, History(samples=samples)))
    async with planner(config), proxied(config) as live:
        await until(lambda: live.proxy.core.expected_us(key) == 9_500_000)


def test_a_history_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path)
    known = EndedBatch((TenantId("a"), JobId("j"), "exact"), History(samples=[(0, (5,))]))
    files.write(known)
    (tmp_path / ("0" * 64)).write_bytes(b"\xff")
    assert [found.key for found in files.read()] == [known.key]
    assert len(list(tmp_path.iterdir())) == 1

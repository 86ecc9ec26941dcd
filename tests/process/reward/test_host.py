"""Hosts of workers and a proxy that uses them: lines, their loss, and GPUs that one worker has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.host import SERVICE, WorkersHost
from plexsvc.reward.main import serving
from plexsvc.reward.messages import Ready, StageDone
from plexsvc.reward.proxy import RewardProxy
from plexsvc.reward.workers import LocalWorkers
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import write_keys
from plexsvc.rpc.services import add_service
from tests.process.reward.test_main import asked, until
from tests.rigs.keys import KEYS

pytestmark = pytest.mark.process
GIB = 1 << 30


@asynccontextmanager
async def hosting(path: Path, *, gpus: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """Serve a host of workers in this process; yield its address."""
    host, server = WorkersHost(gpus), new_server(KEYS)
    add_service(server, SERVICE, calls={"Work": host.work})
    address = listen(server, f"unix:{path}", KEYS, key="listen")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


@dataclass(frozen=True, slots=True)
class Hosted:
    """A proxy whose workers are on hosts."""

    proxy: RewardProxy

    async def use(self, *hosts: pb.HostFacts, epoch: int = 1) -> None:
        fence = common_pb2.Fence(scheduler_epoch=epoch, incarnation=1)
        await self.proxy.use_hosts(pb.UseHostsRequest(fence=fence, hosts=hosts))

    def working(self) -> set[str]:
        """Return the nodes with a worker that runs something."""
        workers = self.proxy.core.workers.values()
        return {worker.place for worker in workers if worker.request is not None}

    async def score(self, request: pb.ScoreRequest) -> list[tuple[float, str]]:
        replies = [pb.ScoreReply.FromString(one) async for one in self.proxy.score(request)]
        return [(one.score, one.verdict) for one in sorted(replies, key=lambda one: one.index)]


@asynccontextmanager
async def hosted(directory: Path) -> AsyncIterator[Hosted]:
    write_keys(directory / "keys.json", KEYS)
    config = RewardServiceConfig(
        listen=f"unix:{directory}/p.sock",
        keys_file=directory / "keys.json",
        programs_dir=directory / "programs",
        on_nodes=True,
        min_workers=0,
    )
    async with serving(config) as (proxy, _):
        yield Hosted(proxy)


def facts(node: str, address: str, *, cpus: int = 1, gpus: int = 0) -> pb.HostFacts:
    return pb.HostFacts(
        node_id=node, address=address, cpus=cpus, memory_bytes=4 * GIB, gpus=gpus, is_open=True
    )


async def test_before_the_scheduler_spoke_nothing_is_taken_and_then_every_node_works(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        left = await stack.enter_async_context(hosting(tmp_path / "l.sock"))
        right = await stack.enter_async_context(hosting(tmp_path / "r.sock"))
        live = await stack.enter_async_context(hosted(tmp_path))
        with pytest.raises(PlexError) as refused:
            await live.score(asked("exact", ["a"], ["a"]))
        assert (refused.value.code, refused.value.retryable) == (ErrorCode.UNAVAILABLE, True)
        await live.use(facts("left", left), facts("right", right))
        texts = [str(n) for n in range(400)]
        assert await live.score(asked("exact", texts, texts)) == [(1.0, "scored")] * 400
        assert {worker.place for worker in live.proxy.core.workers.values()} == {"left", "right"}
        with pytest.raises(PlexError) as stale:
            await live.use(epoch=0)
        assert stale.value.code is ErrorCode.STALE_FENCE


async def test_samples_of_a_host_that_goes_are_scored_on_another(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        right = await stack.enter_async_context(hosting(tmp_path / "r.sock"))
        live = await stack.enter_async_context(hosted(tmp_path))
        code = ["import time; time.sleep(0.3); print(int(input()) + 1)"] * 6
        request = asked("code_python", code, [[{"stdin": "1", "stdout": "2"}]] * 6)
        async with asyncio.TaskGroup() as tasks, hosting(tmp_path / "l.sock") as left:
            await live.use(facts("left", left), facts("right", right))
            scoring = tasks.create_task(live.score(request))
            await until(lambda: "left" in live.working())
        assert scoring.result() == [(1.0, "scored")] * 6


async def test_a_gpu_is_one_workers_until_nothing_of_it_is_left() -> None:
    heard: asyncio.Queue[tuple[int, object]] = asyncio.Queue()

    def hear(worker: WorkerId, what: Ready | StageDone | str) -> None:
        heard.put_nowait((worker, what))

    async with LocalWorkers(hear, gpus=["7"]) as workers:
        for number in (1, 2, 3):
            workers.start(WorkerId(number), modules=(), gpus=1)
        first, said = await heard.get()
        assert (first, type(said)) == (1, Ready)
        workers.stop(WorkerId(2))
        second, said = await heard.get()
        assert (second, type(said)) == (2, str), "it is stopped before it had a GPU"
        assert heard.empty()
        assert list(workers.pids) == [1]
        os.kill(workers.pids[WorkerId(1)], signal.SIGKILL)
        assert [(await heard.get())[0] for _ in range(2)] == [1, 3]
        assert list(workers.pids) == [3]


@pytest.fixture
def child() -> Iterator[None]:
    """Another child of this process, which goes on."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield
        process.kill()


@pytest.mark.usefixtures("child")
async def test_the_end_of_a_worker_waits_for_no_process_that_was_there_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plexsvc.reward.workers._REAP_S", 1e6)
    heard: asyncio.Queue[object] = asyncio.Queue()
    async with LocalWorkers(lambda _, what: heard.put_nowait(what)) as workers:
        workers.start(WorkerId(1), modules=())
        assert isinstance(await heard.get(), Ready)
        workers.stop(WorkerId(1))
        assert isinstance(await asyncio.wait_for(heard.get(), 120), str)

"""The reward proxy as it serves: real workers, real kills, over its port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import reward_pb2 as pb
from plexclient.wire.v1 import reward_pb2_grpc
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.main import serving
from plexsvc.reward.proxy import RewardProxy
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import write_keys
from tests.rigs.keys import KEYS

pytestmark = pytest.mark.process
CALL_S = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """A proxy that serves, and its client."""

    proxy: RewardProxy
    stub: Any

    async def score(self, request: pb.ScoreRequest) -> dict[int, pb.ScoreReply]:
        """Return the answers to a request, by index."""
        try:
            return {r.index: r async for r in self.stub.Score(request, timeout=CALL_S)}
        except grpc.aio.AioRpcError as failure:
            raise error_from(failure) from failure


@asynccontextmanager
async def served(
    directory: Path,
    **limits: Any,
) -> AsyncIterator[Served]:
    keys_file = directory / "keys.json"
    write_keys(keys_file, KEYS)
    config = RewardServiceConfig(
        listen=f"unix:{directory}/p.sock",
        keys_file=keys_file,
        programs_dir=directory / "programs",
        **limits,
    )
    async with serving(config) as (proxy, address), open_channel(address, KEYS) as channel:
        yield Served(proxy, reward_pb2_grpc.RewardStub(channel))


def asked(
    program: str,
    texts: Sequence[str],
    references: Sequence[object] | None = None,
    *,
    batch: bytes = b"b" * 16,
    tenant: str = "acme",
    **settings: object,
) -> pb.ScoreRequest:
    samples = [
        pb.ScoreSample(
            index=i, text=text, reference="" if references is None else json.dumps(references[i])
        )
        for i, text in enumerate(texts)
    ]
    return pb.ScoreRequest(
        tenant=tenant,
        job_id="job-1",
        batch_id=batch,
        program=program,
        settings=json.dumps(settings),
        samples=samples,
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.01)


def endless(texts: Sequence[str]) -> pb.ScoreRequest:
    """Return a request with a pattern that takes for ever on a text of many a's."""
    return asked("regex", texts, pattern=r"(a|a)*b")


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r", numbered=True)


async def test_each_sample_gets_its_score_with_verdict_and_time(short: Path) -> None:
    async with served(short) as live:
        found = await live.score(asked("exact", ["4", " 4 ", "5"], ["4", "4", "4"]))
    assert [(found[i].score, found[i].verdict) for i in range(3)] == [
        (1.0, "scored"),
        (1.0, "scored"),
        (0.0, "scored"),
    ]
    assert all(reply.time_us > 0 for reply in found.values())


async def test_a_score_comes_with_what_the_program_says_of_it(short: Path) -> None:
    async with served(short) as live:
        found = await live.score(asked("numeric", ["it is 7", "none"], [7, 7]))
    assert [found[i].detail for i in range(2)] == [
        "the last number is 7",
        "the text holds no number",
    ]


async def test_a_sample_without_a_score_is_reported_and_the_others_go_on(short: Path) -> None:
    async with served(short) as live:
        found = await live.score(asked("numeric", ["it is 7", "7"], [7, "seven"]))
    assert (found[0].verdict, found[0].score) == ("scored", 1.0)
    assert found[1].verdict == "error"
    assert found[1].detail == "numeric: the reference must be a number, not 'seven'"


async def test_a_sample_sent_again_is_answered_from_the_record(short: Path) -> None:
    request = asked("exact", ["4"], ["4"])
    async with served(short) as live:
        first, again = await live.score(request), await live.score(request)
        other = await live.score(asked("exact", ["4"], ["4"], tenant="rival"))
    assert again == first
    assert other[0].time_us != first[0].time_us, "another tenant's batch is another batch"


async def test_two_that_ask_for_the_same_sample_get_the_same_run(short: Path) -> None:
    request = asked("exact", ["4"], ["4"])
    async with served(short) as live:
        one, two = await asyncio.gather(live.score(request), live.score(request))
    assert one == two


async def test_a_killed_worker_costs_a_retry_and_nothing_else(short: Path) -> None:
    async with served(short, max_workers=1) as live, asyncio.TaskGroup() as group:
        asking = group.create_task(live.score(endless(["a" * 40, "ab"])))
        await until(lambda: live.proxy.running)
        (pid,) = live.proxy.worker_pids.values()
        os.kill(pid, signal.SIGKILL)
        found = await asking
    assert (found[0].verdict, found[0].score) == ("timeout", -1.0)
    assert found[0].detail == "stage compare took longer than it may, 10 s at most"
    assert found[1].score == 1.0


def named(name: str) -> list[int]:
    """Return the processes below this one that have a name."""
    found, todo = [], [os.getpid()]
    while todo:
        parent = todo.pop()
        with contextlib.suppress(OSError):
            found += [parent] if Path(f"/proc/{parent}/comm").read_text().strip() == name else []
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                todo += map(int, children.read_text().split())
    return found


@pytest.mark.parametrize("victim", ["reward-zygote", "sandbox-zygote"])
async def test_a_killed_zygote_changes_no_score(victim: str, short: Path) -> None:
    """Each seed kills one at a moment of its own, while a batch runs."""
    texts = ["print(int(input()) * 2)", "print(0)", "raise Oops", "import os; os._exit(0)"] * 6
    tests = [[{"stdin": str(n), "stdout": str(2 * n)}] for n in range(len(texts))]
    expected = [float(n % 4 == 0) for n in range(len(texts))]
    async with served(short, max_workers=2) as live:

        async def scores(batch: bytes) -> list[tuple[float, str]]:
            found = await live.score(asked("code_python", texts, tests, batch=batch))
            return [(found[n].score, found[n].verdict) for n in range(len(texts))]

        undisturbed = await scores(b"u" * 16)
        assert undisturbed == [(value, "scored") for value in expected]
        for seed in range(6):
            dice = random.Random(seed)
            async with asyncio.TaskGroup() as group:
                scoring = group.create_task(scores(bytes([seed]) * 16))
                await asyncio.sleep(dice.uniform(0, 0.15))
                await until(lambda: named(victim))
                os.kill(dice.choice(named(victim)), signal.SIGKILL)
            assert scoring.result() == undisturbed, seed


async def test_a_batch_that_nobody_waits_for_is_dropped_with_its_workers(short: Path) -> None:
    async with served(short, keep_us=100_000, max_workers=1) as live:
        call = live.stub.Score(endless(["a" * 40]), timeout=CALL_S)
        await until(lambda: live.proxy.running)
        (pid,) = live.proxy.worker_pids.values()
        call.cancel()
        await until(lambda: pid not in live.proxy.worker_pids.values())
        assert (live.proxy.core.batches, live.proxy.records) == ({}, {})
        found = await live.score(asked("exact", ["x"], ["x"]))
    assert found[0].score == 1.0


BAD: dict[str, tuple[pb.ScoreRequest, ErrorCode, str]] = {
    "unknown program": (asked("nope", ["x"]), ErrorCode.NOT_FOUND, "no program 'nope'"),
    "unknown setting": (asked("exact", ["x"], ["x"], fuzzy=1), ErrorCode.BAD_REQUEST, "fuzzy"),
    "setting of another type": (
        asked("exact", ["x"], ["x"], strip="yes"),
        ErrorCode.BAD_REQUEST,
        "strip of program exact must be of type bool, not str",
    ),
    "short batch id": (
        asked("exact", ["x"], ["x"], batch=b"b"),
        ErrorCode.BAD_REQUEST,
        "batch_id of 16 bytes",
    ),
    "settings nested deep": (
        pb.ScoreRequest(
            job_id="job-1",
            batch_id=b"b" * 16,
            program="exact",
            settings="[" * 100_000,
            samples=[pb.ScoreSample()],
        ),
        ErrorCode.BAD_REQUEST,
        "settings are not JSON",
    ),
    "too many samples": (asked("exact", ["x"] * 9), ErrorCode.QUEUE_FULL, "reward.max_samples"),
    "too many bytes": (asked("exact", ["x" * 999]), ErrorCode.QUEUE_FULL, "reward.max_bytes"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_refused_changes_nothing(name: str, short: Path) -> None:
    request, code, text = BAD[name]
    async with served(short, max_samples=8, max_bytes=500) as live:
        with pytest.raises(PlexError, match=text) as refused:
            await live.score(request)
        assert refused.value.code is code
        assert (live.proxy.core.batches, live.proxy.records) == ({}, {})


async def test_batches_of_a_tenant_are_bounded_and_what_is_answered_gives_its_room_back(
    short: Path,
) -> None:
    async with served(short, max_batches=2, max_bytes=30) as live:
        for batch in (b"1" * 16, b"2" * 16):
            await live.score(asked("exact", ["x" * 5], ["x" * 5], batch=batch))
        with pytest.raises(PlexError, match=r"3 batches ") as refused:
            await live.score(asked("exact", ["x"], ["x"], batch=b"3" * 16))
        assert refused.value.code is ErrorCode.QUEUE_FULL
        assert [record.nbytes for record in live.proxy.records.values()] == [0, 0]
        await live.score(asked("exact", ["x"], ["x"], batch=b"3" * 16, tenant="other"))
        await live.score(asked("exact", ["x" * 5, "y"], ["x" * 5, "y"], batch=b"2" * 16))


async def test_a_sample_with_the_index_of_another_is_refused(short: Path) -> None:
    async with served(short) as live:
        await live.score(asked("exact", ["4"], ["4"]))
        with pytest.raises(PlexError, match="sample 0 of the batch came before"):
            await live.score(asked("exact", ["5"], ["4"]))


async def test_the_view_shows_other_tenants_batches_to_operators_alone(short: Path) -> None:
    async with served(short, max_workers=1) as live:
        call = live.stub.Score(endless(["a" * 40]), timeout=CALL_S)
        await until(lambda: live.proxy.running)
        views = [
            await live.stub.GetRewards(pb.GetRewardsRequest(tenant=tenant, is_operator=is_operator))
            for tenant, is_operator in (("acme", False), ("rival", False), ("ops", True))
        ]
        call.cancel()
    assert [len(view.batches) for view in views] == [1, 0, 1]
    assert views[0].batches[0].critical.startswith("sample 0 runs in stage compare since")
    assert views[0].pools[0].busy == 1


async def test_the_view_says_what_the_workers_do_that_a_sample_waits_for(short: Path) -> None:
    async with served(short, max_workers=1) as live:
        call = live.stub.Score(endless(["a" * 40] * 2), timeout=CALL_S)
        await until(lambda: live.proxy.running)
        other = asked("exact", ["4"], ["4"], batch=b"c" * 16)
        waiting = live.stub.Score(other, timeout=CALL_S)
        await until(lambda: len(live.proxy.core.batches) == 2)
        view = await live.stub.GetRewards(pb.GetRewardsRequest(tenant="acme"))
        call.cancel()
        waiting.cancel()
    assert view.batches[1].critical.endswith(
        "2 samples wait for workers of cpu=1,mem=1GiB: 1 are busy, 0 start, and there may be 1"
    )


def own_program(text: str, *, tenant: str = "acme") -> pb.AddProgramRequest:
    """Return a program that gives an expression as the score."""
    source = f"def score(sample):\n    return {text}\n"
    stage = pb.ProgramStage(
        name="score",
        resource="cpu",
        count=1,
        memory_bytes=256 << 20,
        timeout_us=30_000_000,
        python="score.py",
    )
    return pb.AddProgramRequest(
        tenant=tenant, name="own", stages=[stage], files={"score.py": source.encode()}
    )


async def refused(call: Awaitable[object]) -> PlexError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from(failure.value)


async def test_an_own_program_scores_for_its_tenant_alone(short: Path) -> None:
    async with served(short) as live:
        added = await live.stub.AddProgram(own_program("len(sample.text)"), timeout=CALL_S)
        found = await live.score(asked("own", ["abc"], any="setting"))
        with pytest.raises(PlexError, match="there is no program 'own'"):
            await live.score(asked("own", ["abc"], tenant="rival"))
        views = [
            await live.stub.GetRewards(pb.GetRewardsRequest(tenant=tenant, is_operator=True))
            for tenant in ("acme", "rival")
        ]
        gone = pb.RemoveProgramRequest(tenant="rival", name="own")
        error = await refused(live.stub.RemoveProgram(gone, timeout=CALL_S))
    assert (found[0].score, found[0].verdict, found[0].version) == (3.0, "scored", added.version)
    shown = [[p.name for p in view.programs if p.version] for view in views]
    assert shown == [["own"], []]
    assert error.code is ErrorCode.NOT_FOUND


async def test_a_batch_keeps_the_version_that_it_began_with(short: Path) -> None:
    one = asked("own", ["a"])
    two = asked("own", ["a", "b"])
    async with served(short) as live:
        await live.stub.AddProgram(own_program("1"), timeout=CALL_S)
        first = await live.score(one)
        await live.stub.AddProgram(own_program("2"), timeout=CALL_S)
        assert [reply.score for reply in (await live.score(two)).values()] == [1.0, 1.0]
        assert (await live.score(asked("own", ["a"], batch=b"c" * 16)))[0].score == 2.0
        await live.stub.RemoveProgram(pb.RemoveProgramRequest(tenant="acme", name="own"))
        await live.stub.AddProgram(own_program("3"), timeout=CALL_S)
        assert [reply.score for reply in (await live.score(two)).values()] == [1.0, 1.0]
        other = asked("own", ["a"])
        other.version = "0" * 32
        with pytest.raises(PlexError, match="a batch has one program"):
            await live.score(other)
    assert first[0].score == 1.0


async def test_own_programs_and_their_versions_outlive_the_proxy(short: Path) -> None:
    async with served(short) as live:
        old = await live.stub.AddProgram(own_program("1"), timeout=CALL_S)
        await live.stub.AddProgram(own_program("2"), timeout=CALL_S)
    async with served(short) as live:
        resumed = asked("own", ["a"])
        resumed.version = old.version
        assert (await live.score(resumed))[0].score == 1.0
        assert (await live.score(asked("own", ["a"], batch=b"c" * 16)))[0].score == 2.0
        resumed = asked("own", ["a"], batch=b"d" * 16)
        resumed.version = "0" * 32
        with pytest.raises(PlexError, match="is gone, the newest is"):
            await live.score(resumed)


async def test_a_refused_program_changes_nothing(short: Path) -> None:
    async with served(short) as live:
        await live.stub.AddProgram(own_program("1"), timeout=CALL_S)
        bad = own_program("2")
        bad.stages[0].timeout_us = 0
        error = await refused(live.stub.AddProgram(bad, timeout=CALL_S))
        assert (error.code, error.facts["field"]) == (ErrorCode.BAD_REQUEST, "stages.timeout_us")
        assert (await live.score(asked("own", ["a"])))[0].score == 1.0


async def test_a_program_that_fails_by_itself_is_tried_again_and_reported(short: Path) -> None:
    async with served(short) as live:
        await live.stub.AddProgram(own_program("1 / len(sample.text)"), timeout=CALL_S)
        found = await live.score(asked("own", ["", "a"]))
    assert found[1].score == 1.0
    assert found[0].verdict == "error"
    assert found[0].detail.startswith("the program failed 3 times, last: RuntimeError: stage score")
    assert "ZeroDivisionError" in found[0].detail


async def test_endless_programs_of_one_of_ten_tenants_take_no_more_than_its_share(
    short: Path,
) -> None:
    """Of two workers each tenant's share is one, as long as another has something to run."""
    tests = [{"stdin": "4", "stdout": "8"}]
    async with served(short, max_workers=2) as live, asyncio.TaskGroup() as tasks:

        async def others(number: int) -> dict[int, pb.ScoreReply]:
            texts = ["print(int(input()) * 2)"] * (3 * number)
            batch = bytes([number]) * 16
            return await live.score(
                asked("code_python", texts, [tests] * len(texts), batch=batch, tenant=f"t{number}")
            )

        good = [tasks.create_task(others(number)) for number in range(1, 10)]
        await until(lambda: len(live.proxy.records) == len(good))
        texts = ["while True: pass"] * 4
        endless = tasks.create_task(
            live.score(asked("code_python", texts, [tests] * 4, tenant="endless", seconds=0.5))
        )
        most = 0
        while not all(task.done() for task in good):
            view = await live.proxy.get_rewards(pb.GetRewardsRequest(is_operator=True))
            if any(batch.queued for batch in view.batches if batch.tenant != "endless"):
                running = (batch.running for batch in view.batches if batch.tenant == "endless")
                most = max(most, *running, 0)
            await asyncio.sleep(0.005)
        assert most <= 1
        for number, task in enumerate(good, start=1):
            answers = await task
            assert [answers[i].score for i in range(3 * number)] == [1.0] * 3 * number
        assert [reply.verdict for reply in (await endless).values()] == ["timeout"] * 4

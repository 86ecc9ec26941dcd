"""What a proxy keeps for a tenant: counted, bounded, on disk where it is bulky, and given back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.ids import TenantId
from plexsvc.reward.record import BatchRecord
from tests.process.reward.test_main import CALL_S, asked, served, until

pytestmark = pytest.mark.process

MIB = 1 << 20
ACME = TenantId("acme")


def stage(name: str, command: str, *, count: int = 1) -> pb.ProgramStage:
    return pb.ProgramStage(
        name=name,
        resource="cpu",
        count=count,
        memory_bytes=256 << 20,
        timeout_us=30_000_000,
        command=command,
    )


def leaving(nbytes: int, *, tenant: str = "acme", judge: str = "") -> pb.AddProgramRequest:
    """Return a program whose first stage leaves a file, and whose second one looks at it."""
    if not judge:
        judge = f"test $(wc -c < input/big) = {nbytes} && echo '{{\"score\": 1}}'"
    stages = [
        stage("make", f"head -c {nbytes} /dev/zero > output/big"),
        stage("look", judge, count=2),
    ]
    return pb.AddProgramRequest(tenant=tenant, name="leaves", stages=stages)


def held(record: BatchRecord) -> int:
    """Return the bytes of files that a record has in memory."""
    files = [one.files for one in record.pending.values() if isinstance(one.files, dict)]
    return sum(len(data) for one in files for data in one.values())


def spilled(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "spill").rglob("*") if path.is_file())


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r", numbered=True)


@pytest.mark.parametrize("nbytes", [1000, 8 * MIB])
async def test_files_between_stages_arrive_whether_they_are_small_or_not(
    nbytes: int, short: Path
) -> None:
    async with served(short, max_workers=2, keep_us=1) as live:
        await live.stub.AddProgram(leaving(nbytes), timeout=CALL_S)
        found = await live.score(asked("leaves", ["a", "b", "c"]))
        assert [found[i].score for i in range(3)] == [1, 1, 1], found
        await until(lambda: not live.proxy.records)
        await until(lambda: not spilled(short))
        assert live.proxy.rooms == {}


async def test_bulky_files_that_wait_lie_on_disk_and_not_in_memory(short: Path) -> None:
    waiting = 16
    async with served(short, max_workers=3, keep_us=1) as live, asyncio.TaskGroup() as tasks:
        # The second stage holds two of the three processors, and the first goes on with one.
        await live.stub.AddProgram(leaving(16 * MIB, judge="sleep 30"), timeout=CALL_S)
        call = live.stub.Score(asked("leaves", ["a"] * (waiting + 1)), timeout=CALL_S)
        reading = tasks.create_task(call.read())
        await until(lambda: spilled(short))
        before = rss_bytes()
        await until(lambda: spilled(short) >= waiting * 16 * MIB)
        (record,) = live.proxy.records.values()
        assert held(record) == 0
        assert live.proxy.rooms[ACME].nbytes < MIB
        assert live.proxy.rooms[ACME].spilled_bytes >= waiting * 16 * MIB
        assert rss_bytes() - before < waiting // 2 * 16 * MIB
        reading.cancel()
        call.cancel()
        await until(lambda: not live.proxy.records and not spilled(short))
        assert live.proxy.rooms == {}


async def test_a_tenant_at_its_bound_of_files_gets_errors_that_name_it_and_others_nothing(
    short: Path,
) -> None:
    async with served(short, max_spilled_bytes=MIB) as live:
        for tenant, nbytes in (("acme", 2 * MIB), ("rival", MIB // 2)):
            await live.stub.AddProgram(leaving(nbytes, tenant=tenant), timeout=CALL_S)
        one = await live.score(asked("leaves", ["a"], tenant="acme"))
        other = await live.score(asked("leaves", ["a"], tenant="rival"))
        assert one[0].verdict == "error"
        assert "reward.max_spilled_bytes" in one[0].detail
        assert (other[0].verdict, other[0].score) == ("scored", 1)
        assert live.proxy.rooms[ACME].spilled_bytes == 0


async def test_a_full_disk_costs_the_sample_that_filled_it(short: Path) -> None:
    async with served(short) as live:
        await live.stub.AddProgram(leaving(MIB), timeout=CALL_S)
        (short / "spill").write_text("no directory")
        found = await live.score(asked("leaves", ["a"]))
        assert found[0].verdict == "error"
        assert "could not be kept" in found[0].detail
        (short / "spill").unlink()
        again = await live.score(asked("leaves", ["a"], batch=b"2" * 16))
        assert again[0].score == 1


async def test_files_of_an_answer_lie_on_disk_until_its_batch_is_dropped(short: Path) -> None:
    code = f"open('big', 'wb').write(bytes({MIB}))"
    request = asked("run_code", [code], [{"language": "python", "fetch_files": ["big"]}])
    async with served(short, keep_us=3_000_000) as live:
        found = await live.score(request)
        assert len(found[0].files["result.json"]) > MIB
        assert spilled(short) > MIB
        assert live.proxy.rooms[ACME].nbytes < 64 << 10
        assert await live.score(request) == found, "it is answered from the record"
        await until(lambda: not live.proxy.records)
        await until(lambda: not spilled(short))


async def test_output_beyond_the_bound_is_left_out_and_the_score_stays(short: Path) -> None:
    program = leaving(1, judge="""head -c 4000 /dev/zero | tr '\\0' x; echo; echo '{"score": 1}'""")
    async with served(short, max_bytes=6000) as live:
        await live.stub.AddProgram(program, timeout=CALL_S)
        found = await live.score(asked("leaves", ["a", "b"]))
        outputs = sorted(reply.output for reply in found.values())
        assert [reply.score for reply in found.values()] == [1, 1]
        assert outputs[0] == "left out: its tenant's answers fill reward.max_bytes"
        assert len(outputs[1]) > 4000
        assert live.proxy.rooms[ACME].nbytes <= 6000


async def test_settings_and_programs_in_use_are_counted(short: Path) -> None:
    async with served(short, max_bytes=5000) as live:
        await live.score(asked("exact", ["a"], ["a"], strip=True))
        program = leaving(1)
        program.files["more"] = b"x" * 4000
        await live.stub.AddProgram(program, timeout=CALL_S)
        await live.score(asked("leaves", ["a"], batch=b"2" * 16))
        await live.score(asked("leaves", ["a"], batch=b"3" * 16))
        big = {"note": "x" * 900}
        with pytest.raises(PlexError, match=r"reward\.max_bytes") as refused:
            await live.score(asked("leaves", ["a"], batch=b"4" * 16, **big))
        assert refused.value.code is ErrorCode.QUEUE_FULL
        assert len(live.proxy.records) == 3


async def test_what_a_proxy_that_died_left_is_removed(short: Path) -> None:
    (short / "spill" / "7").mkdir(parents=True)
    (short / "spill" / "7" / "8").write_bytes(b"x" * 100)
    async with served(short):
        assert spilled(short) == 0


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

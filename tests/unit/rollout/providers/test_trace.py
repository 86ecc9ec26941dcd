"""Traces of spot nodes: what is read, what is refused, and how one is played."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.pool import Fact, SlotCame, SlotGone, SlotNoticed
from plexsvc.rollout.providers.trace import Change, TraceProvider, read_trace
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_hosts import FakeHosts

HEAD = "segment,variant,t_ms,event,nodes\n"


def written(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def test_a_segment_of_a_compressed_trace_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = "one,base,0,add,a;b\ntwo,base,0,add,x\none,base,500,remove,a\n"
    rows += "one,base,900,no-op,\none,base,999,DONE,\n"
    path.write_bytes(gzip.compress((HEAD + rows).encode()))
    assert read_trace(path, segment="one/base") == [
        Change(0, is_add=True, node="a"),
        Change(0, is_add=True, node="b"),
        Change(500_000, is_add=False, node="a"),
    ]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["s,v,0,remove,a"], "line 2: node 'a' goes and is not there"),
        (["s,v,0,add,a", "s,v,5,add,a"], "line 3: node 'a' comes and is there already"),
        (["s,v,9,add,a", "s,v,5,add,b"], "line 3: t_ms is 5, before 9"),
        (["s,v,-1,add,a"], "line 2: t_ms is -1, before 0"),
        (["s,v,soon,add,a"], "line 2: t_ms is 'soon'"),
        (["s,v,0,vanish,a"], "line 2: event is 'vanish'"),
        (["other,v,0,add,a"], "no node comes or goes in segment 's'"),
    ],
)
def test_an_impossible_trace_is_refused_with_its_line(
    tmp_path: Path, rows: list[str], says: str
) -> None:
    with pytest.raises(PlexError, match=says) as caught:
        read_trace(written(tmp_path / "trace.csv", *rows), segment="s")
    assert caught.value.code == ErrorCode.BAD_REQUEST


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


async def test_nodes_take_free_devices_and_are_noticed_before_they_go() -> None:
    told: list[Fact] = []
    changes = [
        Change(0, is_add=True, node="a"),
        Change(0, is_add=True, node="b"),
        Change(0, is_add=True, node="c"),
        Change(60_000_000, is_add=False, node="a"),
        Change(60_000_000, is_add=True, node="d"),
    ]
    clock = FakeClock()
    provider = TraceProvider(
        FakeHosts(["n:0", "n:1"]), clock, changes, scale=60, notice_us=30_000_000, price=2
    )
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(provider.run(told.append))
        for expected in (2, 3, 5):
            while len(told) < expected:
                await clock.passes(100_000)
        playing.cancel()
    assert told == [
        SlotCame(slot_id="n:0", price=2),
        SlotCame(slot_id="n:1", price=2),
        SlotNoticed(slot_id="n:0"),
        SlotGone(slot_id="n:0"),
        SlotCame(slot_id="n:0", price=2),
    ]
    assert clock.monotonic_us() >= 1_000_000

"""Traces of spot nodes: what is read, what is refused, and how one is played."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.pool import Fact, SlotCame, SlotGone, SlotNoticed, SlotPriced
from plexsvc.rollout.providers.trace import (
    Change,
    NodeChange,
    PriceChange,
    TraceProvider,
    read_trace,
)
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_hosts import FakeHosts

HEAD = "segment,variant,t_ms,event,nodes,price\n"


def written(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def test_a_segment_of_a_compressed_trace_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = "one,base,0,add,a;b\ntwo,base,0,add,x\none,base,500,remove,a\n"
    rows += "one,base,900,no-op,\none,base,999,DONE,\n"
    path.write_bytes(gzip.compress((HEAD + rows).encode()))
    assert read_trace(path, segment="one/base") == [
        NodeChange(0, is_add=True, node="a"),
        NodeChange(0, is_add=True, node="b"),
        NodeChange(500_000, is_add=False, node="a"),
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
        (["s,v,0,price,,-1"], "line 2: price is '-1'; it is a number from 0"),
        (["s,v,0,price,,nan"], "line 2: price is 'nan'"),
        (["s,v,0,price,,2"], "no node comes or goes"),
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


def test_prices_are_read_in_their_order(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.csv", "s,v,0,add,a,", "s,v,5,price,,2.5")
    assert read_trace(path) == [NodeChange(0, is_add=True, node="a"), PriceChange(5_000, 2.5)]


ONE_NODE: list[Change] = [
    NodeChange(0, is_add=True, node="a"),
    NodeChange(180_000_000, is_add=False, node="a"),
]


async def played(changes: list[Change], *, notice_us: int, count: int) -> list[tuple[int, Fact]]:
    """What a provider of two devices tells, 60 times as fast as recorded, and when in ms."""
    told: list[tuple[int, Fact]] = []
    clock = FakeClock()
    provider = TraceProvider(
        FakeHosts(["n:0", "n:1"]), clock, changes, scale=60, notice_us=notice_us, price=2
    )

    def tell(fact: Fact) -> None:
        told.append((clock.monotonic_us() // 1000, fact))

    async with asyncio.TaskGroup() as group:
        playing = group.create_task(provider.run(tell))
        while len(told) < count:
            await clock.passes(100_000)
        playing.cancel()
    begun_ms = told[0][0]
    return [(at_ms - begun_ms, fact) for at_ms, fact in told]


async def test_nodes_take_free_devices_and_are_noticed_before_they_go() -> None:
    changes: list[Change] = [
        NodeChange(0, is_add=True, node="a"),
        NodeChange(0, is_add=True, node="b"),
        NodeChange(0, is_add=True, node="c"),
        NodeChange(60_000_000, is_add=False, node="a"),
        NodeChange(60_000_000, is_add=True, node="d"),
    ]
    told = await played(changes, notice_us=30_000_000, count=5)
    assert [fact for _, fact in told] == [
        SlotCame(slot_id="n:0", price=2),
        SlotCame(slot_id="n:1", price=2),
        SlotNoticed(slot_id="n:0"),
        SlotGone(slot_id="n:0"),
        SlotCame(slot_id="n:0", price=2),
    ]


@pytest.mark.parametrize(("notice_us", "noticed_ms"), [(30_000_000, 2500), (120_000_000, 1000)])
async def test_a_notice_comes_so_long_before_the_end_of_a_node(
    notice_us: int, noticed_ms: int
) -> None:
    told = await played(ONE_NODE, notice_us=notice_us, count=3)
    (_, _), (at_ms, noticed), (gone_ms, gone) = told
    assert (noticed, gone) == (SlotNoticed(slot_id="n:0"), SlotGone(slot_id="n:0"))
    assert abs(at_ms - noticed_ms) <= 100, "a look of the clock"
    assert abs(gone_ms - 3000) <= 100


async def test_without_a_notice_a_node_goes_at_once() -> None:
    told = await played(ONE_NODE, notice_us=0, count=2)
    assert [fact for _, fact in told] == [
        SlotCame(slot_id="n:0", price=2),
        SlotGone(slot_id="n:0"),
    ]


async def test_a_price_holds_for_what_is_there_and_for_what_comes() -> None:
    changes: list[Change] = [
        NodeChange(0, is_add=True, node="a"),
        PriceChange(6_000_000, 3.5),
        NodeChange(12_000_000, is_add=True, node="b"),
    ]
    told = await played(changes, notice_us=0, count=3)
    assert [fact for _, fact in told] == [
        SlotCame(slot_id="n:0", price=2),
        SlotPriced(slot_id="n:0", price=3.5),
        SlotCame(slot_id="n:1", price=3.5),
    ]

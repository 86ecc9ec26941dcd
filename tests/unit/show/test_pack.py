"""The pictures of a plan: what is planned when, what overlaps, and whose names may be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.show.pack import moves_view, pack_view, what_if_view
from plexsvc.show.pack_plan import Spans, Window, overlaps, planned, shared, shares
from plexsvc.show.pack_png import draw_pack

S = 1_000_000


def shown(view: RenderableType, *, width: int = 120) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


def resident(job: str = "math", *busy: tuple[int, int], **more: object) -> pb.PackResident:
    """A deployment with a ten second cycle, busy at the given seconds of it."""
    return pb.PackResident(
        **{
            "deployment_id": f"{job}/actor",
            "job_id": job,
            "job_name": job,
            "name": "actor",
            "devices": ["n:0"],
            "period_us": 10 * S,
            "shift_us": 2 * S,
            "duty_ppm": 200_000,
            "bound_ppm": 1_500_000,
            "predicted_ppm": 1_040_000,
            "busy": [pb.BusySpan(start_us=a * S, end_us=b * S) for a, b in busy],
        }
        | more  # type: ignore[arg-type]
    )


def reply(*residents: pb.PackResident, **more: object) -> pb.PackReply:
    group = pb.PackGroup(
        kind="train",
        group_id=3,
        devices=["n:0", "n:1", "m:0"],
        duty_ppm=400_000,
        duty_cap_ppm=900_000,
        state_bytes=600 << 20,
        parked_bytes=4 << 30,
        booked=[
            pb.HostUse(use="state", nbytes=500 << 20),
            pb.HostUse(use="copies", nbytes=100 << 20),
        ],
        residents=residents,
    )
    facts = {"now_us": 100 * S, "slot_us": S, "horizon_us": 28_800 * S, "window_us": 20 * S}
    return pb.PackReply(groups=[group], policy="plex", **(facts | more))  # type: ignore[arg-type]


def test_a_lane_is_full_where_the_plan_says_busy_and_overlap_is_shown_apart() -> None:
    pack = reply(resident("math", (0, 2)), resident("code", (1, 5)))
    lines = shown(pack_view(pack, width=54))
    math, code, overlap = (
        next(line for line in lines if line.startswith(name) and "▕" in line)
        for name in ("math", "code", "overlap")
    )
    bars = [line.split("▕")[1].rstrip("▏") for line in (math, code, overlap)]
    assert [len(bar) for bar in bars] == [40, 40, 40]  # two columns a second
    assert bars == [
        cycle * 2 for cycle in ("████".ljust(20), "  ████████".ljust(20), "  ██".ljust(20))
    ]
    assert any("n:0,1 m:0" in line and "duty 40% of at most 90%" in line for line in lines)
    assert "host memory 600 of 4,096 MiB (state 500, copies 100)" in lines


def test_figures_say_shift_slowdowns_wait_and_what_is_special() -> None:
    pack = reply(
        resident(measured_ppm=1_100_000, wait_ratio_ppm=40_000, is_pinned=True, moving_to=["m:0"]),
        resident("code", is_cold=True, predicted_ppm=0),
    )
    lines = [line.split() for line in shown(pack_view(pack, width=160), width=160)]
    math = next(line for line in lines if line[:2] == ["math/actor", "n:0"])
    assert math[2:] == [
        *("10", "s", "2", "s", "20%", "1.04", "/", "1.10", "≤", "1.50", "4%", "0.0"),
        *("pinned,", "moves", "to", "m:0"),
    ]
    code = next(line for line in lines if line[:2] == ["code/actor", "n:0"])
    assert code[7:12] == ["-", "/", "-", "≤", "1.50"]
    assert code[-2:] == ["being", "profiled"]


def test_another_tenants_deployment_keeps_its_times_and_has_no_name() -> None:
    hidden = resident("", (0, 2), deployment_id="", name="")
    lines = shown(pack_view(reply(hidden), width=120))
    assert any(line.startswith("another tenant's ▕█") for line in lines)


def test_who_waits_outside_is_told_with_the_reason() -> None:
    waiting = pb.PackWaiting(
        job_id="j", job_name="late", name="actor", since_us=95 * S, reason="no"
    )
    lines = shown(pack_view(reply(waiting=[waiting], idle=["m:1", "m:2"]), width=120))
    assert "waiting since 5 s: late/actor: no" in lines
    assert "idle: m:1,2" in lines


def test_a_cluster_without_training_says_so() -> None:
    assert "no training deployment is placed" in shown(pack_view(pb.PackReply(), width=80))


def test_a_what_if_says_where_and_what_it_costs_or_why_it_waits() -> None:
    one = pb.WhatIfNeighbour(
        job_name="math", name="actor", before_ppm=1_000_000, after_ppm=1_030_000
    )
    fits = pb.WhatIfReply(
        fits=True, devices=["n:0"], group_ids=[3], shift_us=4 * S, predicted_ppm=1_060_000
    )
    fits.neighbours.append(one)
    lines = shown(what_if_view(fits), width=200)
    assert "n:0 (group 3), shifted by 4 s" in lines[0]
    assert lines[-1].split() == ["math/actor", "1.00", "1.03", "-"]
    waits = pb.WhatIfReply(reasons=["duty would pass 90% (duty_cap)"])
    assert shown(what_if_view(waits))[-1].strip() == "duty would pass 90% (duty_cap)"


def test_moves_are_listed_or_said_to_be_none() -> None:
    move = pb.JobMove(
        job_name="math", name="actor", from_devices=["n:0"], to_devices=["m:0"], state_bytes=S
    )
    assert shown(moves_view(pb.MovesReply(moves=[move])))[0].startswith("math/actor: n:0 → m:0")
    assert shown(moves_view(pb.MovesReply(reasons=["pinned"]))) == ["nothing moves", "  pinned"]


def test_a_png_is_written_for_any_number_of_groups(tmp_path: Path) -> None:
    for number, pack in enumerate([pb.PackReply(), reply(resident("m", (0, 2)), resident("c"))]):
        path = tmp_path / f"{number}.png"
        draw_pack(path, pack)
        assert path.read_bytes().startswith(b"\x89PNG")


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=6)


def disjoint(pairs: list[tuple[int, int]]) -> Spans:
    spans, at = [], 0
    for gap, length in pairs:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return spans


@given(st.lists(SPANS, max_size=4))
def test_overlaps_are_where_a_count_by_points_says(lanes: list[list[tuple[int, int]]]) -> None:
    spans = [disjoint(lane) for lane in lanes]
    found = overlaps(spans)
    last = max((e for lane in spans for _, e in lane), default=0)
    for at in range(last + 1):
        deep = sum(any(s <= at < e for s, e in lane) for lane in spans)
        assert any(s <= at < e for s, e in found) == (deep >= 2), at


@given(st.integers(0, 100), st.integers(1, 60), st.integers(1, 30))
def test_shares_add_up_to_the_planned_time(start: int, length: int, columns: int) -> None:
    window = Window(start_us=start, length_us=length)
    spans = planned(resident("x", busy=[pb.BusySpan(start_us=2, end_us=5)], period_us=7), window)
    total = sum(shares(spans, window, columns=columns)) * length / columns
    assert total == pytest.approx(sum(e - s for s, e in spans), abs=1e-6)


def test_residents_of_different_devices_of_a_group_do_not_overlap() -> None:
    one, two = resident("math", (0, 4)), resident("code", (2, 6), devices=["n:1"])
    both = resident("tool", (3, 5), devices=["n:0", "n:1"])
    window = Window(start_us=0, length_us=10 * S)
    assert shared(reply(one, two).groups[0], window) == []
    assert shared(reply(one, two, both).groups[0], window) == [(3 * S, 5 * S)]

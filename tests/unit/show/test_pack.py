"""The pictures of a plan: which windows are whose, and whose names may be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.show.pack import moves_view, pack_view, what_if_view
from plexsvc.show.pack_plan import PictureWindow, planned, shares

S = 1_000_000
NOW = 100 * S


def shown(view: RenderableType, *, width: int = 120) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


def resident(job: str = "math", *busy: tuple[int, int], **more: object) -> pb.PackResident:
    """A deployment with a ten second cycle, and windows at the given seconds from now."""
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
            "busy": [pb.BusySpan(start_us=NOW + a * S, end_us=NOW + b * S) for a, b in busy],
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
    facts = {"now_us": NOW, "horizon_us": 100 * S, "window_us": 20 * S}
    return pb.PackReply(groups=[group], policy="plex", **(facts | more))  # type: ignore[arg-type]


def test_a_lane_is_full_in_its_windows_and_a_flat_one_is_as_high_as_its_duty() -> None:
    pack = reply(resident("math", (0, 2), (10, 12)), resident("code", place="of 3 places"))
    lines = shown(pack_view(pack, width=54))
    math, code = (
        next(line for line in lines if line.startswith(name) and "▕" in line)
        for name in ("math", "code")
    )
    bars = [line.split("▕")[1].rstrip("▏") for line in (math, code)]
    assert bars == ["████".ljust(20) * 2, "▂" * 40]  # two columns a second
    assert "code/actor: of 3 places" in lines
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
        fits=True, devices=["n:0"], group_ids=[3], predicted_ppm=1_060_000, place="slides by 4 s"
    )
    fits.neighbours.append(one)
    lines = shown(what_if_view(fits), width=200)
    assert "n:0 (group 3); predicted slowdown 1.06" in lines[0]
    assert lines[1] == "slides by 4 s"
    assert lines[-1].split() == ["math/actor", "1.00", "1.03", "-"]
    waits = pb.WhatIfReply(reasons=["duty would pass 90% (duty_cap)"])
    assert shown(what_if_view(waits))[-1].strip() == "duty would pass 90% (duty_cap)"


def test_moves_are_listed_or_said_to_be_none() -> None:
    move = pb.JobMove(
        job_name="math", name="actor", from_devices=["n:0"], to_devices=["m:0"], state_bytes=S
    )
    assert shown(moves_view(pb.MovesReply(moves=[move])))[0].startswith("math/actor: n:0 → m:0")
    assert shown(moves_view(pb.MovesReply(reasons=["pinned"]))) == ["nothing moves", "  pinned"]


@given(st.integers(0, 100), st.integers(1, 60), st.integers(1, 30))
def test_shares_add_up_to_the_planned_time(start: int, length: int, columns: int) -> None:
    window = PictureWindow(start_us=start, length_us=length)
    busy = [pb.BusySpan(start_us=at, end_us=at + 3) for at in range(2, 170, 7)]
    spans = planned(resident("x", busy=busy), window)
    total = sum(shares(spans, window, columns=columns)) * length / columns
    assert total == pytest.approx(sum(e - s for s, e in spans), abs=1e-6)

"""`plexctl pack`: show the plan of each node group, answer what-if questions, repack."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plexsvc.cli.options import (
    Address,
    Json,
    StateDir,
    Token,
    calls_to,
    console,
    live,
    print_json,
    print_message,
    show,
    to_dict,
)

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cluster.calls import RouterCalls

_MAX_WINDOW_S: Final = 1e9
_MAX_EXPECTED_US: Final = 1 << 62
_ANY_NODES: Final = 1 << 30
_ANY_GB: Final = 1e9
_APPLY_TIMEOUT_S: Final = 60.0
_REFRESH_S: Final = 1.0


def pack(
    window: Annotated[
        float,
        typer.Option(help="Seconds to show from now; 0: a few cycles.", min=0, max=_MAX_WINDOW_S),
    ] = 0.0,
    png: Annotated[Path | None, typer.Option(help="Also write the picture to this file.")] = None,
    what_if: Annotated[
        Path | None,
        typer.Option(
            "--what-if",
            help="JSON file of a job, the keys of a trace's line of `simulate` (a node is a device "
            "here): say where it would go and what that costs the others.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Repack now and print the moves ordered (operators).")
    ] = False,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show who owns which slots of each node group, with slowdowns predicted and measured."""
    if sum([what_if is not None, apply, png is not None]) > 1:
        raise typer.BadParameter("give one of --png, --what-if and --apply")
    shape = None if what_if is None else _shape(what_if)
    with calls_to(state_dir, address=address, token=token) as calls:
        if shape is not None:
            _what_if(calls, shape, json=json)
        elif apply:
            _apply(calls, json=json)
        else:
            _picture(calls, window_us=round(window * 1e6), png=png, json=json)


def top(
    window: Annotated[
        float,
        typer.Option(help="Seconds to show from now; 0: a few cycles.", min=0, max=_MAX_WINDOW_S),
    ] = 0.0,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Keep jobs, devices and the rings of their groups on the screen until Ctrl-C.

    In a pipe, and with --json, they are printed once.
    """
    from rich.console import Group

    from plexsvc.show.pack import pack_view
    from plexsvc.show.status import status_view

    window_us = round(window * 1e6)
    with calls_to(state_dir, address=address, token=token) as calls:
        if json:
            _print_both(calls, window_us=window_us)
            return
        width = console().width
        live(
            (
                Group(status_view(_status(calls)), pack_view(_pack(calls, window_us), width=width))
                for _ in count()
            ),
            every_s=_REFRESH_S,
        )


def _print_both(calls: RouterCalls, *, window_us: int) -> None:
    """Print what `top` shows, once."""
    status, pack = _status(calls), _pack(calls, window_us)
    print_json({"status": to_dict(status), "pack": to_dict(pack)})


def _status(calls: RouterCalls) -> service_pb2.ClusterStatus:
    from plexclient.wire.v1 import service_pb2

    return calls.call("GetStatus", service_pb2.GetStatusRequest(), service_pb2.ClusterStatus)


def _pack(calls: RouterCalls, window_us: int) -> service_pb2.PackReply:
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.PackRequest(window_us=window_us)
    return calls.call("GetPack", request, service_pb2.PackReply)


def _picture(calls: RouterCalls, *, window_us: int, png: Path | None, json: bool) -> None:
    reply = _pack(calls, window_us)
    if png is not None:
        _draw(png, reply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.pack import pack_view

    show(pack_view(reply, width=console().width))


def _draw(path: Path, reply: service_pb2.PackReply) -> None:
    from plexsvc.errors import ErrorCode, PlexError

    try:
        from plexsvc.show.pack_png import draw_pack
    except ImportError as error:
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"--png needs matplotlib, which is not here ({error}); install plexsvc[plots]",
        ) from error
    try:
        draw_pack(path, reply)
    except (OSError, ValueError) as error:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"--png {path} could not be written: {error}; give a file name that ends in .png in a "
            "directory that exists",
        ) from error


def _what_if(calls: RouterCalls, shape: service_pb2.JobShape, *, json: bool) -> None:
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.WhatIfRequest(job=shape)
    reply = calls.call("WhatIf", request, service_pb2.WhatIfReply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.pack import what_if_view

    show(what_if_view(reply))


def _apply(calls: RouterCalls, *, json: bool) -> None:
    from plexclient.wire.v1 import service_pb2

    reply = calls.call(
        "Repack", service_pb2.RepackRequest(), service_pb2.MovesReply, timeout_s=_APPLY_TIMEOUT_S
    )
    if json:
        print_message(reply)
        return
    from plexsvc.show.pack import moves_view

    show(moves_view(reply))


def _shape(path: Path) -> service_pb2.JobShape:
    """Return the job of a file.

    Raises:
        PlexError: `bad_request` with file and field.
    """
    from plexclient.wire.v1 import service_pb2
    from plexsvc.sim.cluster import SimCluster
    from plexsvc.sim.trace import read_job

    anywhere = SimCluster(nodes=_ANY_NODES, host_gb=_ANY_GB, disk_gb=_ANY_GB)
    demand = read_job(path, cluster=anywhere).demand
    profile = demand.profile
    return service_pb2.JobShape(
        job_id=demand.job_id,
        num_devices=demand.num_nodes,
        period_us=profile.period_us,
        segments=[
            service_pb2.CycleSegment(
                phase=s.phase, offset_us=s.offset_us, duration_us=s.duration_us
            )
            for s in profile.segments
        ],
        mode=profile.mode,
        sync_at=profile.sync_at,
        jitter_ppm=profile.jitter_ppm,
        max_slowdown_ppm=demand.max_slowdown_ppm,
        state_bytes=demand.state_bytes,
        rollout_devices=demand.rollout_nodes,
        priority=demand.priority,
        expected_us=min(demand.expected_us, _MAX_EXPECTED_US),
    )

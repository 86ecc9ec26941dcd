"""`plexctl pack`: show the plan of each node group, answer what-if questions, repack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from plexsvc.cli.app import At, console

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2

_MAX_WINDOW_S: Final = 1e9
_MAX_EXPECTED_US: Final = 1 << 62
_ANY_NODES: Final = 1 << 30
_ANY_GB: Final = 1e9
_APPLY_TIMEOUT_S: Final = 60.0

Window: TypeAlias = Annotated[
    float,
    typer.Option(help="Seconds to show from now; 0: a few cycles.", min=0, max=_MAX_WINDOW_S),
]


def pack(
    at: At,
    window: Window = 0.0,
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
) -> None:
    """Show who owns which slots of each node group, with slowdowns predicted and measured."""
    from plexsvc.show.pack import moves_view, pack_view, what_if_view

    if what_if is not None and apply:
        raise typer.BadParameter("give one of --what-if and --apply")
    shape = None if what_if is None else _shape(what_if)
    if shape is not None:
        answer = at.ask("WhatIf", job=shape)
        at.show(answer, what_if_view(answer))
    elif apply:
        moves = at.ask("Repack", timeout_s=_APPLY_TIMEOUT_S)
        at.show(moves, moves_view(moves))
    else:
        picture = at.ask("GetPack", window_us=round(window * 1e6))
        at.show(picture, pack_view(picture, width=console().width))


def wanted(at: At) -> None:
    """Show the devices that what waits wants, by kind and by what it is short of.

    With --json, print what the command of `autoscaler` is told.
    """
    from plexsvc.cli.app import print_json
    from plexsvc.cluster.autoscaler import told
    from plexsvc.show.pack import demand_view

    pack = at.ask("GetPack")
    if at.json:
        print_json(told(pack, at.ask("ListNodes")))
    else:
        at.show(pack, demand_view(pack.demand))


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
        job_id=demand.resident_id,
        num_devices=demand.num_units,
        period_us=profile.period_us,
        segments=[
            service_pb2.CycleSegment(
                phase=s.phase, offset_us=s.offset_us, duration_us=s.duration_us
            )
            for s in profile.segments
        ],
        mode=profile.mode,
        jitter_ppm=profile.jitter_ppm,
        max_slowdown_ppm=demand.max_slowdown_ppm,
        state_bytes=demand.state_bytes,
        rollout_devices=demand.rollout_units,
        priority=demand.priority,
        expected_us=min(demand.expected_us, _MAX_EXPECTED_US),
    )

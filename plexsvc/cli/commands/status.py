"""`plexctl status` and `plexctl top`: jobs and devices, once or live."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plexsvc.cli.app import At, console, live, print_json, to_dict
from plexsvc.cli.commands.pack import Window

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2

_STATUS_REFRESH_S: Final = 0.5
_TOP_REFRESH_S: Final = 1.0


def status(
    at: At,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep it on the screen until Ctrl-C; in a pipe: once."),
    ] = False,
) -> None:
    """Show jobs with step, phase and reward, and who is on the devices."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.status import status_view

    with at.router() as router:

        def ask() -> service_pb2.ClusterStatus:
            return router.GetStatus(service_pb2.GetStatusRequest())

        if watch and not at.json:
            live((status_view(ask()) for _ in count()), every_s=_STATUS_REFRESH_S)
        else:
            reply = ask()
            at.show(reply, status_view(reply))


def top(at: At, window: Window = 0.0) -> None:
    """Keep jobs, devices, rollout instances and rings of groups on the screen until Ctrl-C.

    In a pipe, and with --json, they are printed once.
    """
    from rich.console import Group

    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.instances import instances_view
    from plexsvc.show.pack import pack_view
    from plexsvc.show.status import status_view

    asked = service_pb2.PackRequest(window_us=round(window * 1e6))
    with at.router() as router:

        def ask() -> tuple[
            service_pb2.ClusterStatus, service_pb2.ListInstancesReply, service_pb2.PackReply
        ]:
            return (
                router.GetStatus(service_pb2.GetStatusRequest()),
                router.ListInstances(service_pb2.ListInstancesRequest()),
                router.GetPack(asked),
            )

        if at.json:
            names = ("status", "instances", "pack")
            print_json({name: to_dict(one) for name, one in zip(names, ask(), strict=True)})
            return
        width = console().width
        views = (
            Group(status_view(status), instances_view(instances), pack_view(pack, width=width))
            for status, instances, pack in (ask() for _ in count())
        )
        live(views, every_s=_TOP_REFRESH_S)

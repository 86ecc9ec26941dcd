"""`plexctl instance`: list rollout engines, drain and open spot ones."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, Commands, command

instance_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List rollout instances; drain and open spot ones.",
    epilog="Example: plexctl instance list",
)


@command(instance_app, "list", example="plexctl instance list")
def instance_list(at: At) -> None:
    """Show every rollout instance: its kind, phase, version, load and tokens a second."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.instances import instances_view

    with at.router() as router:
        reply = router.ListInstances(service_pb2.ListInstancesRequest())
    at.show(reply, instances_view(reply))


@command(instance_app, "drain", example="plexctl instance drain spot-a:0")
def instance_drain(
    at: At, device: Annotated[str, typer.Argument(help="Its device, as `list` shows it.")]
) -> None:
    """End a spot instance once its samples go on elsewhere; its device is closed (operators)."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.instances import instances_view

    with at.router() as router:
        reply = router.DrainInstance(service_pb2.DrainInstanceRequest(device=device))
    at.show(reply, instances_view(reply))


@command(instance_app, "open", example="plexctl instance open spot-a:0")
def instance_open(
    at: At, device: Annotated[str, typer.Argument(help="Its device, as `list` shows it.")]
) -> None:
    """Let a spot device that was drained have instances again (operators)."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.instances import instances_view

    with at.router() as router:
        reply = router.OpenInstance(service_pb2.OpenInstanceRequest(device=device))
    at.show(reply, instances_view(reply))

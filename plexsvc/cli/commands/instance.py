"""`plexctl instance`: list rollout engines, drain and open spot ones, lend serving ones."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, Commands, Json, StateDir, command, print_json
from plexsvc.cli.commands.serve import turn

instance_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List rollout instances; drain and open spot ones; lend and reclaim serving ones.",
    epilog="Example: plexctl instance list",
)


@command(instance_app, "list", example="plexctl instance list")
def instance_list(at: At) -> None:
    """Show every rollout instance: its kind, phase, version, load and tokens a second."""
    from plexsvc.show.instances import instances_view

    reply = at.ask("ListInstances")
    at.show(reply, instances_view(reply))


@command(instance_app, "drain", example="plexctl instance drain spot-a:0")
def instance_drain(
    at: At, device: Annotated[str, typer.Argument(help="Its device, as `list` shows it.")]
) -> None:
    """End a spot instance once its samples go on elsewhere; its device is closed (operators)."""
    from plexsvc.show.instances import instances_view

    reply = at.ask("DrainInstance", device=device)
    at.show(reply, instances_view(reply))


@command(instance_app, "open", example="plexctl instance open spot-a:0")
def instance_open(
    at: At, device: Annotated[str, typer.Argument(help="Its device, as `list` shows it.")]
) -> None:
    """Let a spot device that was drained have instances again (operators)."""
    from plexsvc.show.instances import instances_view

    reply = at.ask("OpenInstance", device=device)
    at.show(reply, instances_view(reply))


Name = Annotated[str, typer.Argument(help="Name of an engine that `plexctl serve` runs here.")]


@instance_app.command("lend", epilog="Example: plexctl instance lend chat")
def instance_lend(name: Name, state_dir: StateDir = None, json: Json = False) -> None:
    """Let RL jobs have what a serving engine of this machine does not need."""
    found = turn(name, "lend", state_dir)
    told = f"{name} lends up to {found['guest_bytes']} bytes of its KV memory"
    print_json(found) if json else typer.echo(told)


@instance_app.command("reclaim", epilog="Example: plexctl instance reclaim chat")
def instance_reclaim(name: Name, state_dir: StateDir = None, json: Json = False) -> None:
    """Take back all time and memory; samples go on elsewhere. Works without the service."""
    found = turn(name, "reclaim", state_dir)
    told = f"{name} has everything back after {found['took_us'] / 1000:.1f} ms"
    print_json(found) if json else typer.echo(told)

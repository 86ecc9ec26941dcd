"""`plexctl ckpt`: list, show, verify, export and delete checkpoints of steps."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from plexsvc.cli.app import At, Commands, command

ckpt_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List, show, verify, export and delete checkpoints that `checkpoint_every` made.",
    epilog="Example: plexctl ckpt list",
)
LONG_S: Final = 3600.0
"""How long a whole checkpoint may take to be read or copied."""

Name = Annotated[
    str,
    typer.Argument(
        metavar="JOB/DEPLOYMENT@STEP", help="By the job's id or name; without @STEP the newest."
    ),
]


@command(ckpt_app, "list", example="plexctl ckpt list --json")
def ckpt_list(at: At) -> None:
    """List your checkpoints, oldest first."""
    from plexsvc.show.checkpoints import checkpoints_view

    reply = at.ask("GetCheckpoints", timeout_s=60)
    at.show(reply, checkpoints_view(reply.checkpoints))


@command(ckpt_app, "show", example="plexctl ckpt show math/actor@400")
def ckpt_show(at: At, name: Name) -> None:
    """Show what a checkpoint is: its files, the data position, what was deployed."""
    _show(at, name, verifies=False)


@command(ckpt_app, "verify", example="plexctl ckpt verify math/actor")
def ckpt_verify(at: At, name: Name) -> None:
    """Compare all of a checkpoint's files with its seal; exit 1 where one is damaged."""
    _show(at, name, verifies=True)


@command(ckpt_app, "export", example="plexctl ckpt export math/actor@400 models/math-400")
def ckpt_export(
    at: At,
    name: Name,
    path: Annotated[str, typer.Argument(help="A new directory below one of your roots.")],
) -> None:
    """Copy a checkpoint's weights to a model directory, as `export` of a deployment writes."""
    _change(at, name, export_to=path, done=f"exported to {path}")


@command(ckpt_app, "delete", example="plexctl ckpt delete math/actor@400")
def ckpt_delete(at: At, name: Name) -> None:
    """Delete a checkpoint."""
    _change(at, name, export_to="", done="deleted")


def _show(at: At, name: str, *, verifies: bool) -> None:
    from plexsvc.show.checkpoints import checkpoint_view

    reply = at.ask("GetCheckpoints", name=name, verifies=verifies, timeout_s=LONG_S)
    (found,) = reply.checkpoints
    at.show(found, f"{found.name} is whole" if verifies else checkpoint_view(found))


def _change(at: At, name: str, *, export_to: str, done: str) -> None:
    found = at.ask("ChangeCheckpoint", name=name, export_to=export_to, timeout_s=LONG_S)
    at.show(found, f"{found.name} {done}")

"""Options that commands share: the cluster's address, `--json`, printing of replies."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from google.protobuf.message import Message
    from rich.console import Console, RenderableType

    from plexsvc.cluster.calls import RouterCalls
    from plexsvc.cluster.places import Card

MISUSED: Final = 2
FAILED: Final = 1

StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="PLEX_STATE_DIR",
        help="The cluster's directory; by default ~/.local/state/plexsvc.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(envvar="PLEX_ADDRESS", help="The cluster's router, instead of --state-dir."),
]
Token = Annotated[str | None, typer.Option(envvar="PLEX_TOKEN", help="Your token.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class Commands(typer.core.TyperGroup):
    """Turns a `PlexError` into its message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as typer's own
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            raise _exit_for(error) from error


def _exit_for(error: Exception) -> Exception:
    errors = sys.modules.get("plexsvc.errors")  # not imported: no such error was ever made
    if errors is None or not isinstance(error, errors.PlexError):
        return error
    typer.echo(str(error), err=True)
    return typer.Exit(MISUSED if error.code == errors.ErrorCode.BAD_REQUEST else FAILED)


def state_dir_of(given: Path | None) -> Path:
    """Return the cluster's directory."""
    from plexsvc.cluster.places import default_state_dir

    return given or default_state_dir()


def card_of(state_dir: Path | None, *, address: str | None, token: str | None) -> Card:
    """Return how to reach the cluster."""
    from plexsvc.cluster.places import find_cluster

    return find_cluster(state_dir_of(state_dir), address=address, token=token)


def calls_to(
    state_dir: Path | None, *, address: str | None, token: str | None
) -> AbstractContextManager[RouterCalls]:
    """Return calls to the cluster's router."""
    from plexsvc.cluster.calls import router

    return router(card_of(state_dir, address=address, token=token))


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(jsonlib.dumps(value))


def print_message(message: Message) -> None:
    """Print a reply as one line of JSON, every field present."""
    print_json(to_dict(message))


def to_dict(message: Message) -> dict[str, Any]:
    """Return a reply as JSON has it, every field present."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def show(view: RenderableType) -> None:
    """Print a view to the terminal."""
    console().print(view)


def console() -> Console:
    """Return the console of stdout."""
    from rich.console import Console

    return Console()


def live(views: Iterator[RenderableType], *, every_s: float) -> None:
    """Keep the newest view on the screen until the views end or Ctrl-C.

    Where there is no screen (a file, a pipe) the first view is printed, once.
    """
    import time

    from rich.live import Live

    to = console()
    if not to.is_terminal:
        to.print(next(views))
        return
    with Live(next(views), console=to, refresh_per_second=1 / every_s) as screen:
        try:
            for view in views:
                screen.update(view)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return

"""Command line application: its groups, the options that commands share, printing of replies."""

from __future__ import annotations

import inspect
import json as jsonlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from google.protobuf.message import Message
    from rich.console import Console, RenderableType

    from plexclient.wire.v1.service_pb2_grpc import RouterStub
    from plexsvc.cluster.places import Card

MISUSED: Final = 2
FAILED: Final = 1
_UNITS_US: Final = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
PIPED_WIDTH: Final = 160
"""Columns of a table that goes to a file or a pipe."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The options of every command that speaks to a cluster: which one, and how to print."""

    state_dir: StateDir = None
    address: Address = None
    token: Token = None
    json: Json = False

    @property
    def card(self) -> Card:
        """Return how to reach the cluster."""
        from plexsvc.cluster.places import find_cluster

        place = state_dir_of(self.state_dir)
        return find_cluster(place, address=self.address, token=self.token)

    def router(self) -> AbstractContextManager[RouterStub]:
        """Return the stub of the cluster's router; its calls raise `PlexError`s."""
        from plexsvc.cluster.calls import router

        return router(self.card)

    def ask(self, method: str, *, timeout_s: float | None = None, **fields: Any) -> Any:
        """Return what the cluster's router answers to a call of `method` with these fields.

        Raises:
            PlexError: `bad_request` for what no message can carry, a number of 70 bits or a name
                that is no UTF-8; what the service refused, or `unavailable`.
        """
        from google.protobuf.message_factory import GetMessageClass

        from plexclient.wire.v1 import service_pb2
        from plexsvc.errors import bad_request

        service = service_pb2.DESCRIPTOR.services_by_name["Router"]
        made = GetMessageClass(service.methods_by_name[method].input_type)
        try:
            request = made(**fields)
        except ValueError as error:
            raise bad_request(f"not a value that can be sent: {error}; give another") from error
        with self.router() as stub:
            return getattr(stub, method)(request, timeout=timeout_s)

    def show(self, reply: Message, view: RenderableType) -> None:
        """Print a reply: as one line of JSON, every field present, or as people read it."""
        if self.json:
            from plexsvc.rpc.services import to_dict

            print_json(to_dict(reply))
        elif isinstance(view, str):
            from plexsvc.show.status import plain

            typer.echo(plain(view))
        else:
            console().print(view)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    example: str,
    **settings: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose first parameter is an `At`; its options are added at the end."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        hints = inspect.get_annotations(At, eval_str=True)
        shared = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(At)
        ]

        @wraps(function)
        def run(**given: Any) -> None:
            at = At(**{field.name: given.pop(field.name) for field in fields(At)})
            function(at, **given)

        parameters = [*own, *shared]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, epilog=f"Example: {example}", **settings)(run)
        return function

    return add


class Commands(typer.core.TyperGroup):
    """Turns a `PlexError` into its message on stderr, as JSON with --json, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except Exception as error:
            raise _exit_for(error, as_json=as_json) from error


def _exit_for(error: Exception, *, as_json: bool) -> Exception:
    errors = sys.modules.get("plexclient.errors")  # not imported: no such error was ever made
    if errors is None or not isinstance(error, errors.PlexError):
        return error
    said = {"code": str(error.code), "message": error.message, "facts": error.facts}
    typer.echo(jsonlib.dumps({"error": said}, default=str) if as_json else str(error), err=True)
    return typer.Exit(MISUSED if error.code == errors.ErrorCode.BAD_REQUEST else FAILED)


def duration_us(wrong: str, text: str, else_: str) -> int:
    """Return a duration such as `12h` or `30d`.

    Raises:
        PlexError: `bad_request`: what is `wrong`, and what to give, or `else_`.
    """
    from plexsvc.errors import bad_request

    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_US or not number.isdecimal() or not int(number):
        raise bad_request(
            f"{wrong}; give a whole number above 0 and one of {', '.join(_UNITS_US)}, such as 30d; "
            f"{else_}"
        )
    return int(number) * _UNITS_US[unit]


def state_dir_of(given: Path | None) -> Path:
    """Return the cluster's directory."""
    from plexsvc.cluster.places import default_state_dir

    return given or default_state_dir()


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(jsonlib.dumps(value))


def console() -> Console:
    """Return the console of stdout; a file or a pipe has room for whole lines of a table."""
    import os

    from rich.console import Console

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if has_width else Console(width=PIPED_WIDTH)


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

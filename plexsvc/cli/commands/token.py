"""`plexctl token`: create, list and revoke tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, Commands, command, duration_us

token_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Create, list and revoke tokens (operators).",
    epilog="Example: plexctl token create lab --expires 30d",
)


@command(token_app, "create", example="plexctl token create lab --expires 30d --name ada")
def token_create(
    at: At,
    tenant: Annotated[str, typer.Argument(help="The tenant that it names.")],
    scope: Annotated[
        str,
        typer.Option(help="read: status and reports. submit: jobs, too. admin: operates, too."),
    ] = "submit",
    expires: Annotated[
        str, typer.Option(help="After how long: 90m, 12h, 30d. By default never.")
    ] = "",
    name: Annotated[str, typer.Option(help="What to call it: who has it, what for.")] = "",
) -> None:
    """Create a token and print it; it is shown this once, and kept nowhere."""
    lifetime_us = 0
    if expires:
        without = "without it the token does not expire"
        lifetime_us = duration_us(f"--expires {expires!r} is no time from now", expires, without)
    reply = at.ask("CreateToken", owner=tenant, scope=scope, name=name, lifetime_us=lifetime_us)
    at.show(reply, reply.secret)


@command(token_app, "list", example="plexctl token list --json")
def token_list(at: At) -> None:
    """Show the tokens that were created, without their secrets; those of the configuration are not.

    Tokens that ended stay for `scheduler.history_days`.
    """
    from plexsvc.show.tokens import tokens_view

    reply = at.ask("ListTokens")
    at.show(reply, tokens_view(reply.tokens))


@command(token_app, "revoke", example="plexctl token revoke tok-1f0c9a3b7d52")
def token_revoke(
    at: At, token_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, from the list.")]
) -> None:
    """Let a token in no more; what is open with it ends. Jobs end as if their clients had left."""
    from plexsvc.show.tokens import tokens_view

    found = at.ask("RevokeToken", token_id=token_id)
    at.show(found, tokens_view([found]))

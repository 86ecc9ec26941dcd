"""`plexctl quota`: how much a tenant may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plexsvc.cli.app import At, Commands, command

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2

quota_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Set, lift and list quotas of tenants (operators).",
    epilog="Example: plexctl quota set lab jobs 4",
)
Tenant = Annotated[str, typer.Argument(help="The tenant that it binds.")]
What = Annotated[
    str,
    typer.Argument(
        help="jobs, devices, host_bytes: at once. requests: a second, through one router. spend: "
        "device-seconds in all."
    ),
]


@command(quota_app, "set", example="plexctl quota set lab jobs 4")
def quota_set(
    at: At,
    tenant: Tenant,
    what: What,
    most: Annotated[int, typer.Argument(min=0, help="How many.")],
) -> None:
    """Bound what a tenant may have from now on; what it has stays. More is refused, by name.

    A request is a call, or an operation. Keeping a job alive, ending it and cancelling count not.
    What all jobs that `plexctl cost` shows have used is spent, switches included: at nine tenths
    jobs show a notice, at all of it they end with `over_budget`, and so does a new one.
    """
    _show(at, at.ask("SetQuota", owner=tenant, what=what, most=most))


@command(quota_app, "lift", example="plexctl quota lift lab jobs")
def quota_lift(at: At, tenant: Tenant, what: What) -> None:
    """Take a tenant's quota away."""
    _show(at, at.ask("SetQuota", owner=tenant, what=what, is_lifted=True))


@command(quota_app, "list", example="plexctl quota list")
def quota_list(at: At) -> None:
    """Show the quotas that bind, and how much of each is used."""
    _show(at, at.ask("ListQuotas"))


def _show(at: At, reply: service_pb2.ListQuotasReply) -> None:
    from plexsvc.show.tokens import quotas_view

    at.show(reply, quotas_view(reply.quotas))

"""Tables of tokens and quotas."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import RenderableType

from plexclient.wire.v1 import service_pb2
from plexsvc.show.status import table_of


def tokens_view(tokens: Iterable[service_pb2.TokenView]) -> RenderableType:
    """Return the table of `plexctl token list`."""
    table = table_of("token", "tenant", "scope", "name", "created", "expires", "revoked")
    for one in tokens:
        ends = [time_of(at_us) if at_us else "-" for at_us in (one.expires_us, one.revoked_us)]
        table.add_row(
            one.token_id, one.owner, one.scope, one.name or "-", time_of(one.created_us), *ends
        )
    return table


def node_tokens_view(tokens: Iterable[service_pb2.TokenView]) -> RenderableType:
    """Return the table of `plexctl node token list`."""
    table = table_of("token", "for node", "used by", "expires", "revoked")
    for one in tokens:
        ends = [time_of(at_us) if at_us else "-" for at_us in (one.expires_us, one.revoked_us)]
        table.add_row(one.token_id, one.name or "any", one.used_by or "-", *ends)
    return table


def quotas_view(quotas: Iterable[service_pb2.QuotaView]) -> RenderableType:
    """Return the table of `plexctl quota list`."""
    table = table_of("tenant", "quota", "at most", "used")
    for one in quotas:
        table.add_row(one.owner, one.what, str(one.most), str(one.used))
    return table


def time_of(at_us: int) -> str:
    """Return a time as tables show it."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")

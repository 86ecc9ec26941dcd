"""Authentication: a bearer token names its tenant, until it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import grpc.aio

from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router import names

SCHEME: Final = "Bearer "
_NO_ENDS: Final[Mapping[str, datetime]] = MappingProxyType({})
_CLOCK: Final = SystemClock()

Metadata = Iterable[tuple[str, str | bytes]]


class Tenants:
    """Who may call, and until when. A tenant's directory has its name.

    Raises:
        PlexError: `bad_request` for a name that cannot be one, an end of a token that is not there,
            or an end without its offset from UTC.
    """

    def __init__(
        self,
        tokens: Mapping[str, str],
        *,
        ends: Mapping[str, datetime] = _NO_ENDS,
        clock: Clock = _CLOCK,
    ) -> None:
        for tenant in tokens.values():
            names.check_name("a tenant's name (router.tokens)", tenant)
        for token, end in ends.items():
            if token not in tokens or end.tzinfo is None:
                what = "names no token" if token not in tokens else f"{end} has no offset from UTC"
                raise PlexError(ErrorCode.BAD_REQUEST, f"router.token_ends: an entry {what}")
        self._tenants = {token: TenantId(tenant) for token, tenant in tokens.items() if token}
        self._ends_us = {token: round(end.timestamp() * 1e6) for token, end in ends.items()}
        self._clock = clock

    def refusal(self, metadata: Metadata) -> PlexError | None:
        """Return why a call with this metadata is refused, None when it carries a known token."""
        found = self._find(metadata)
        return found if isinstance(found, PlexError) else None

    def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> TenantId:
        """Return the tenant whose token the call carries.

        Raises:
            PlexError: `unauthenticated`.
        """
        return self.tenant_of(context.invocation_metadata() or ())

    def tenant_of(self, metadata: Metadata) -> TenantId:
        """Return the tenant whose token is in the metadata, or in the headers, of a request.

        Raises:
            PlexError: `unauthenticated`.
        """
        found = self._find(metadata)
        if isinstance(found, PlexError):
            raise found
        return found

    def _find(self, metadata: Metadata) -> TenantId | PlexError:
        found = next((str(value) for key, value in metadata if key == "authorization"), "")
        token = found.removeprefix(SCHEME)
        tenant = self._tenants.get(token)
        if tenant is not None and found.startswith(SCHEME):
            end_us = self._ends_us.get(token)
            if end_us is None or self._clock.wall_us() < end_us:
                return tenant
            end = datetime.fromtimestamp(end_us / 1e6, UTC).isoformat(timespec="seconds")
            return PlexError(
                ErrorCode.UNAUTHENTICATED,
                f"the call's token of tenant {tenant!r} ended at {end} (router.token_ends); ask an "
                "operator for another",
            )
        what = "a token this router does not know" if found else "no token"
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"the call carries {what}; send `authorization: Bearer TOKEN` with a token of "
            "router.tokens",
        )

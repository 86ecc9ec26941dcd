"""Authentication: a bearer token names its tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc.aio

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router import names

SCHEME: Final = "Bearer "

Metadata = Iterable[tuple[str, str | bytes]]


class Tenants:
    """Who may call. A tenant's directory has its name.

    Raises:
        PlexError: `bad_request` for a name that cannot be one.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        for tenant in tokens.values():
            names.check_name("a tenant's name (router.tokens)", tenant)
        self._tenants = {token: TenantId(tenant) for token, tenant in tokens.items() if token}

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
        tenant = self._tenants.get(found.removeprefix(SCHEME))
        if tenant is not None and found.startswith(SCHEME):
            return tenant
        what = "a token this router does not know" if found else "no token"
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"the call carries {what}; send `authorization: Bearer TOKEN` with a token of "
            "router.tokens",
        )

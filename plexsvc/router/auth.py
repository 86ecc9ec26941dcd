"""Authentication: a bearer token names its tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc.aio

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId

SCHEME: Final = "Bearer "


class Tenants:
    """Who may call."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tenants = {token: TenantId(tenant) for token, tenant in tokens.items() if token}

    def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> TenantId:
        """Return the tenant whose token the call carries.

        Raises:
            PlexError: `unauthenticated`.
        """
        metadata = context.invocation_metadata() or ()
        found = next((value for key, value in metadata if key == "authorization"), "")
        tenant = self._tenants.get(str(found).removeprefix(SCHEME))
        if tenant is None or not str(found).startswith(SCHEME):
            what = "a token this router does not know" if found else "no token"
            raise PlexError(
                ErrorCode.UNAUTHENTICATED,
                f"the call carries {what}; send `authorization: Bearer TOKEN` with a token of "
                "router.tokens",
            )
        return tenant

"""Handlers for tokens: made, listed and revoked by operators, watched by routers.

Routers keep the whole table and look callers up in it. They ask for the next one as soon as they
have one, and are answered when it changes.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError, not_found, queue_full, unavailable
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import TokenRow

MAX_TOKENS: Final = 4096
"""Tokens that let in; the next is refused."""
MAX_ENDED: Final = 1024
"""Tokens that let in no more whose callers are told why: those that ended last."""
WATCH_S: Final = 20.0
"""How long a router is not answered while nothing changes: less than `control_timeout_us`."""
SECRET_BYTES: Final = 32
JOIN: Final = "join"
"""Scope of a token that lets in a node, not a caller."""


class Tokens:
    """The tokens that operators made."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        self._rows = {row.token_id: row for row in scheduler.tokens()}
        self._revision = (scheduler.epoch << 32) + 1
        self._changed = asyncio.Event()
        self._changing = asyncio.Lock()
        self._is_stopping = False
        self._trim()
        self.methods: Methods = {
            "CreateToken": self.create,
            "ListTokens": self.list,
            "RevokeToken": self.revoke,
            "WatchTokens": self.watch,
        }

    def stop(self) -> None:
        """Answer the routers that watch."""
        self._is_stopping = True
        self._changed.set()

    async def create(self, request: pb.CreateTokenRequest) -> pb.CreateTokenReply:
        """Make a token and tell its secret, this once.

        Raises:
            PlexError: `queue_full` when there are too many; why it could not be stored.
        """
        self._scheduler.check_open()
        async with self._changing:
            now_us = self._scheduler.clock.wall_us()
            if sum(not row.ended_us(now_us) for row in self._rows.values()) >= MAX_TOKENS:
                raise queue_full(
                    f"no token created for {request.owner!r}: {MAX_TOKENS} let in already; revoke "
                    "some (`plexctl token list`)"
                )
            token_id = f"tok-{secrets.token_hex(6)}"
            secret = f"{token_id}.{secrets.token_urlsafe(SECRET_BYTES)}"
            if request.scope == JOIN:  # so that the node knows whom it asks
                secret += f".{self._scheduler.members.keys.digest}"
            row = TokenRow(
                token_id=token_id,
                tenant=request.owner,
                scope=request.scope,
                name=request.name,
                hash=sha256(secret.encode()).digest(),
                created_us=now_us,
                expires_us=now_us + request.lifetime_us if request.lifetime_us else 0,
                revoked_us=0,
            )
            await self._keep(row)
        return pb.CreateTokenReply(token=self._view(row), secret=secret)

    async def list(self, _: pb.ListTokensRequest) -> pb.ListTokensReply:
        """Return the tokens, oldest first."""
        return pb.ListTokensReply(tokens=[self._view(row) for row in self._rows.values()])

    async def revoke(self, request: pb.RevokeTokenRequest) -> pb.TokenView:
        """Let a token in no more; routers end what is open with it.

        Raises:
            PlexError: `not_found`; why it could not be stored.
        """
        self._scheduler.check_open()
        async with self._changing:
            row = self._rows.get(request.token_id)
            if row is None:
                raise not_found(
                    f"no token {request.token_id!r} to revoke; `plexctl token list` shows them, "
                    "and those of the configuration (`tokens`) are revoked there"
                )
            if not row.revoked_us:
                row = replace(row, revoked_us=self._scheduler.clock.wall_us())
                await self._keep(row)
        return self._view(row)

    async def watch(self, request: pb.WatchTokensRequest) -> pb.WatchTokensReply:
        """Return the table, once it is another than the one of a revision, or after a while.

        Raises:
            PlexError: `unavailable` when the scheduler stops.
        """
        if request.revision == self._revision and not self._is_stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._changed.wait()
        if self._is_stopping:
            raise unavailable("the scheduler stops; ask the one after it")
        reply = pb.WatchTokensReply(revision=self._revision)
        for row in self._rows.values():
            view = self._view(row)
            view.hash = row.hash
            reply.tokens.append(view)
        for (tenant, what), most in self._scheduler.registry.quotas.items():
            if what == "requests" and most:
                reply.quotas.add(owner=tenant, what=what, most=most)
        return reply

    def changed(self) -> None:
        """Answer the routers that watch: their table, or what their tenants may ask, is another."""
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def joining(self, token_id: str) -> TokenRow:
        """Return a token that lets in a node.

        Raises:
            PlexError: `unauthenticated` when it does not, or no more.
        """
        row = self._rows.get(token_id)
        if row is None or row.scope != JOIN or row.ended_us(self._scheduler.clock.wall_us()):
            raise PlexError(
                ErrorCode.UNAUTHENTICATED,
                f"token {token_id!r} lets in no node, or no more; ask an operator for another "
                "(`plexctl node token create`)",
                token=token_id,
            )
        return row

    async def _keep(self, row: TokenRow) -> None:
        await self._scheduler.remember(row)
        self._rows[row.token_id] = row
        self._trim()
        self.changed()

    def _trim(self) -> None:
        now_us = self._scheduler.clock.wall_us()
        ended = sorted((row.ended_us(now_us), row.token_id) for row in self._rows.values())
        for _, token_id in [one for one in ended if one[0]][:-MAX_ENDED]:
            del self._rows[token_id]

    def _view(self, row: TokenRow) -> pb.TokenView:
        return pb.TokenView(
            token_id=row.token_id,
            owner=row.tenant,
            scope=row.scope,
            name=row.name,
            created_us=row.created_us,
            expires_us=row.expires_us,
            revoked_us=row.revoked_us,
            used_by=self._scheduler.members.has_token(row.token_id) if row.scope == JOIN else "",
        )

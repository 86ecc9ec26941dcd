"""Authentication: a bearer token names its tenant and what it may do, until it ends.

Tokens are the configuration's, or those that operators made: the scheduler keeps these, by the hash
of their secret, and the router learns the whole table from it whenever that changes. A call that is
open with a token of the table ends when the token does.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, TypeVar

import grpc.aio

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import ErrorCode, PlexError, bad_request, unavailable
from plexsvc.ids import TenantId
from plexsvc.router import names
from plexsvc.router.rates import Rates

SCHEME: Final = "Bearer "
STORED: Final = "tok-"
"""How a token that an operator made begins: with its id, which a dot ends."""
READ, _SUBMIT, ADMIN = names.SCOPES
_NO_ENDS: Final[Mapping[str, datetime]] = MappingProxyType({})
_CLOCK: Final = SystemClock()

Metadata = Iterable[tuple[str, str | bytes]]
T = TypeVar("T")


class Stored:
    """A token of the store, and the calls that are open with it."""

    def __init__(self, view: pb.TokenView, clock: Clock) -> None:
        self.view = view
        self._clock = clock
        self._open: set[asyncio.Timeout] = set()

    def refusal(self) -> PlexError | None:
        """Return why it lets in no more, None while it does."""
        expires_us = self.view.expires_us
        has_expired = expires_us and expires_us <= self._clock.wall_us()
        return self._ended() if self.view.revoked_us or has_expired else None

    def _ended(self) -> PlexError:
        view = self.view
        what = "was revoked" if view.revoked_us else "expired"
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"token {view.token_id} of tenant {view.owner!r} {what} at "
            f"{_time(view.revoked_us or view.expires_us)}; ask an operator for another "
            "(`plexctl token create`)",
            token=view.token_id,
        )

    def learn(self, view: pb.TokenView) -> None:
        """Take what the scheduler says now; calls that are open end if the token has."""
        self.view = view
        if self.refusal() is not None:
            for ending in self._open:
                # One that has expired is ending already, and cannot be put off.
                if not ending.expired():
                    ending.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def valid(self) -> AsyncIterator[None]:
        """Have a block end when the token does.

        Raises:
            PlexError: `unauthenticated`.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        end_us = self.view.expires_us
        left_s = (end_us - self._clock.wall_us()) / 1e6 if end_us else None
        ending = asyncio.timeout(left_s)
        try:
            async with ending:
                self._open.add(ending)
                try:
                    yield
                finally:
                    self._open.discard(ending)
        except TimeoutError as error:
            # A time that the block itself waited for was over, not the token's.
            if not ending.expired():
                raise
            raise self._ended() from error


class Caller:
    """Who makes a call, and what it may do."""

    def __init__(
        self, tenant: TenantId, *, is_operator: bool, stored: Stored | None = None
    ) -> None:
        self.tenant: Final = tenant
        self.is_operator: Final = is_operator
        self._stored = stored
        is_for_nodes = stored is not None and stored.view.scope == names.JOIN
        self.joins_by: Final = stored.view.token_id if stored is not None and is_for_nodes else ""
        """The id of a token that lets in a node; empty: it lets in a caller."""

    def check_may_change(self, what: str) -> None:
        """Refuse a token that may only read.

        Raises:
            PlexError: `forbidden`.
        """
        if self._stored is not None and self._stored.view.scope == READ:
            raise PlexError(
                ErrorCode.FORBIDDEN,
                f"token {self._stored.view.token_id} of tenant {self.tenant!r} may only read, and "
                f"{what} does more; ask an operator for another (`plexctl token create "
                f"{self.tenant} --scope submit`)",
                token=self._stored.view.token_id,
            )

    @asynccontextmanager
    async def valid(self) -> AsyncIterator[None]:
        """Have a block end with `unauthenticated` when a token of the store does."""
        if self._stored is None:
            yield
        else:
            async with self._stored.valid():
                yield

    async def through(self, messages: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield messages until they end, or the token does.

        Raises:
            PlexError: `unauthenticated`.
        """
        async with aclosing(messages):
            if self._stored is None:
                async for message in messages:
                    yield message
                return
            while True:
                # Not around the yield: whoever takes the message is not ours to interrupt.
                async with self._stored.valid():
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return
                yield message


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
        operators: Iterable[str] = (),
        clock: Clock = _CLOCK,
    ) -> None:
        for tenant in tokens.values():
            names.check_name("a tenant's name (router.tokens)", tenant)
        for token, end in ends.items():
            if token not in tokens or end.tzinfo is None:
                what = "names no token" if token not in tokens else f"{end} has no offset from UTC"
                raise bad_request(f"router.token_ends: an entry {what}")
        self._tenants = {token: TenantId(tenant) for token, tenant in tokens.items() if token}
        self._ends_us = {token: round(end.timestamp() * 1e6) for token, end in ends.items()}
        self._operators = frozenset(operators)
        self._clock = clock
        self._stored: dict[str, Stored] = {}
        self.rates = Rates(clock)
        self.revision = 0
        """Of the scheduler's table; 0: none has come."""

    def learn(self, table: pb.WatchTokensReply) -> None:
        """Take the scheduler's table, unless a newer one came first."""
        if table.revision <= self.revision:
            return
        self.revision = table.revision
        self.rates.learn(table.quotas)
        before, self._stored = self._stored, {}
        for view in table.tokens:
            one = before.get(view.token_id) or Stored(view, self._clock)
            self._stored[view.token_id] = one
            one.learn(view)

    def refusal(self, metadata: Metadata) -> PlexError | None:
        """Return why a call with this metadata is refused, None when it carries a known token."""
        found = self._find(metadata)
        return found if isinstance(found, PlexError) else None

    def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Return whose token the call carries.

        Raises:
            PlexError: `unauthenticated`.
        """
        return self.caller_of(context.invocation_metadata() or ())

    def caller_of(self, metadata: Metadata) -> Caller:
        """Return whose token is in the metadata, or in the headers, of a request.

        Raises:
            PlexError: `unauthenticated`; `unavailable` for a token that may be in a table that has
                yet to come.
        """
        found = self._find(metadata)
        if isinstance(found, PlexError):
            raise found
        if found.joins_by:
            raise PlexError(
                ErrorCode.UNAUTHENTICATED,
                f"token {found.joins_by} lets in a node (`plexctl node join`), and no caller",
                token=found.joins_by,
            )
        return found

    def joining(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Return the id of the token, for a node that joins, that the call carries.

        Raises:
            PlexError: `unauthenticated`; `forbidden` for a token of another scope.
        """
        found = self._find(context.invocation_metadata() or ())
        if isinstance(found, PlexError):
            raise found
        if not found.joins_by:
            raise PlexError(
                ErrorCode.FORBIDDEN,
                f"the call's token of tenant {found.tenant!r} lets in no node; ask an operator for "
                "one that does (`plexctl node token create`)",
            )
        return found.joins_by

    def may_see_all(self, caller: Caller) -> bool:
        """Return whether it may look at what every tenant does: an operator's, of any scope."""
        return caller.is_operator or caller.tenant in self._operators

    def _find(self, metadata: Metadata) -> Caller | PlexError:
        found = next((str(value) for key, value in metadata if key == "authorization"), "")
        token = found.removeprefix(SCHEME)
        if not found.startswith(SCHEME):
            return _unknown(found)
        tenant = self._tenants.get(token)
        if tenant is None:
            return self._find_stored(token)
        end_us = self._ends_us.get(token)
        if end_us is None or self._clock.wall_us() < end_us:
            return Caller(tenant, is_operator=tenant in self._operators)
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"the call's token of tenant {tenant!r} ended at {_time(end_us)} (router.token_ends); "
            "ask an operator for another",
        )

    def _find_stored(self, token: str) -> Caller | PlexError:
        if token.startswith(STORED) and not self.revision:
            return unavailable(
                "this router has yet to hear from its scheduler which tokens there are; try again"
            )
        stored = self._stored.get(token.partition(".")[0])
        # Bytes of a header that are no text come as halves of surrogate pairs.
        digest = sha256(token.encode(errors="replace")).digest()
        if stored is None or not hmac.compare_digest(digest, stored.view.hash):
            return _unknown(token)
        tenant, is_operator = TenantId(stored.view.owner), stored.view.scope == ADMIN
        return stored.refusal() or Caller(tenant, is_operator=is_operator, stored=stored)


def _unknown(found: str) -> PlexError:
    what = "a token this router does not know" if found else "no token"
    return PlexError(
        ErrorCode.UNAUTHENTICATED,
        f"the call carries {what}; send `authorization: Bearer TOKEN` with a token of "
        "router.tokens, or one that `plexctl token create` printed",
    )


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")

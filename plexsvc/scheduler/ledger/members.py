"""Nodes that joined, by the certificates that they were given, and those that were shut out.

A certificate is given for a token of scope join, which is then that key's alone, or because a
launcher asks. A node that was shut out is refused by the serials of its certificates. The service's
own processes read them in a file, the others hear them with the renewal of their lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Final

from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, not_found, queue_full
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import ClusterKeys, write_shut_out
from plexsvc.store.rows import MemberRow, TokenRow

MAX_MEMBERS: Final = 4096
"""Certificates that are valid at once; the next is refused."""


class Members:
    """The certificates of a cluster's nodes."""

    def __init__(
        self,
        rows: Iterable[MemberRow],
        *,
        keys: ClusterKeys,
        clock: Clock,
        remember: Callable[[MemberRow], Awaitable[None]],
        valid_us: int = certificates.VALID_US,
    ) -> None:
        """Go on with the certificates that were given before; new ones are valid for `valid_us`."""
        self._valid_us = valid_us
        self.keys = keys
        self._clock = clock
        self._remember = remember
        self._rows = {row.serial: row for row in rows}
        self._changing = asyncio.Lock()
        self._write()

    @property
    def shut_out_serials(self) -> list[str]:
        """The serials to refuse; those of certificates that expired are refused anyhow."""
        now_us = self._clock.wall_us()
        return [r.serial for r in self._rows.values() if r.shut_out_us and r.expires_us > now_us]

    def has_token(self, token_id: str) -> str:
        """Return which node joined with a token, nothing when none did."""
        used = (row.node_id for row in self._rows.values() if row.token_id == token_id)
        return next(used, "")

    def is_of(self, node_id: str, public_key: bytes) -> bool:
        """Return whether a node was given a certificate for a key."""
        key = sha256(public_key).hexdigest()
        return any(row.key == key and row.node_id == node_id for row in self._rows.values())

    def is_shut_out(self, node_id: str) -> bool:
        """Return whether a node was shut out and has no right since."""
        mine = [row for row in self._rows.values() if row.node_id == node_id]
        return bool(mine) and all(row.shut_out_us for row in mine)

    async def issue(self, request: str, *, token: TokenRow | None = None) -> MemberRow:
        """Return the certificate of the node that a request names: a new one, or what it was given.

        Raises:
            PlexError: `unauthenticated` for a token that another node or key has; `forbidden` for a
                node that the token is not for, or that was shut out; `bad_request` for what is no
                request; why it could not be stored.
        """
        node_id, public_key = certificates.requested(request)
        key = sha256(public_key).hexdigest()
        async with self._changing:
            mine = [row for row in self._rows.values() if row.node_id == node_id]
            given = self._given(mine, token=token, key=key)
            if given is not None:
                _check_used(given, node_id=node_id, key=key)
                return given
            shut_out_us = max((row.shut_out_us for row in mine), default=0)
            _check_name(node_id, token=token, shut_out_us=shut_out_us)
            now_us = self._clock.wall_us()
            if sum(row.expires_us > now_us for row in self._rows.values()) >= MAX_MEMBERS:
                raise queue_full(f"node {node_id} not let in: {MAX_MEMBERS} certificates are valid")
            row = MemberRow(
                serial="",
                node_id=node_id,
                token_id="" if token is None else token.token_id,
                key=key,
                certificate="",
                issued_us=now_us,
                expires_us=0,
                shut_out_us=0,
            )
            return await self._certify(row, certificates.sign, of=request)

    async def renewed(self, serial: str) -> MemberRow | None:
        """Return what a node with a certificate is to have next, once a third of its life is left.

        None for one that goes on, for one that has ended or was shut out, and for an unknown one.

        Raises:
            PlexError: why it could not be stored.
        """
        async with self._changing:
            now_us = self._clock.wall_us()
            known = self._rows.get(serial)
            if known is None or known.shut_out_us or not _is_due(known, now_us=now_us):
                return None
            row = _newest(r for r in self._rows.values() if r.key == known.key)
            if row.serial != serial:
                return row  # it was told, and has not got it
            return await self._certify(
                replace(row, issued_us=now_us), certificates.renew, of=row.certificate
            )

    async def _certify(self, row: MemberRow, sign: Callable[..., str], *, of: str) -> MemberRow:
        certificate = sign(
            of,
            authority=self.keys.certificate,
            private_key=self.keys.private_key,
            now_us=row.issued_us,
            valid_us=self._valid_us,
        )
        facts = certificates.read(certificate)
        row = replace(
            row, serial=facts.serial, certificate=certificate, expires_us=facts.expires_us
        )
        await self._keep(row)
        return row

    def _given(
        self, mine: Iterable[MemberRow], *, token: TokenRow | None, key: str
    ) -> MemberRow | None:
        """Return what was given for a token, or to a node without one for its key."""
        if token is None:
            given = [row for row in mine if row.key == key and not row.token_id]
        else:
            given = [r for r in self._rows.values() if r.token_id == token.token_id]
        return _newest(given) if given else None

    async def shut_out(self, node_id: str) -> list[MemberRow]:
        """Refuse every certificate of a node from now on; return them.

        Raises:
            PlexError: `not_found` when it was given none; why it could not be stored.
        """
        async with self._changing:
            mine = [row for row in self._rows.values() if row.node_id == node_id]
            if not mine:
                raise not_found(
                    f"node {node_id!r} was given no certificate: it did not join by a token or a "
                    "launcher. One of the service's own host leaves the configuration"
                )
            now_us = self._clock.wall_us()
            for row in mine:
                await self._keep(replace(row, shut_out_us=row.shut_out_us or now_us))
            self._write()
        return [self._rows[row.serial] for row in mine]

    async def _keep(self, row: MemberRow) -> None:
        await self._remember(row)
        self._rows[row.serial] = row

    def _write(self) -> None:
        if self.keys.shut_out is not None:
            write_shut_out(self.keys.shut_out, self.shut_out_serials)


def _newest(rows: Iterable[MemberRow]) -> MemberRow:
    return max(rows, key=lambda row: row.issued_us)


def _is_due(row: MemberRow, *, now_us: int) -> bool:
    left_us = row.expires_us - now_us
    return 0 < left_us <= (row.expires_us - row.issued_us) // 3


def _check_used(given: MemberRow, *, node_id: str, key: str) -> None:
    if (given.node_id, given.key) != (node_id, key):
        raise PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"token {given.token_id} was used by node {given.node_id!r}, and lets in one node "
            "once; ask an operator for another (`plexctl node token create`)",
            token=given.token_id,
        )
    if given.shut_out_us:
        raise _out(node_id)


def _check_name(node_id: str, *, token: TokenRow | None, shut_out_us: int) -> None:
    """Refuse a node that a token is not for; one that was shut out needs a new one for its name."""
    is_for = token is not None and token.name == node_id
    if token is not None and token.name and not is_for:
        raise PlexError(
            ErrorCode.FORBIDDEN,
            f"token {token.token_id} is for node {token.name!r}, and node {node_id!r} shows it",
            node=node_id,
        )
    if shut_out_us and not (token is not None and is_for and token.created_us > shut_out_us):
        raise _out(node_id)


def _out(node_id: str) -> PlexError:
    return PlexError(
        ErrorCode.FORBIDDEN,
        f"node {node_id!r} was shut out; an operator lets it in again with a new token for its "
        f"name (`plexctl node token create --name {node_id}`)",
        node=node_id,
    )

"""Signed links to saved weights, for clients that bring no token: a tar of all files, or one file.

A link names tenant, weights, file and end, and is signed with a key that follows from the cluster's
secret, so that any router of its host serves it. It leads nowhere once its time, or that of the
name, is over. Files go out a piece at a time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Final

from aiohttp import web

from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.ids import TenantId
from plexsvc.router.http.server import TENANT
from plexsvc.router.http.tinker.names import SCHEME, Names, Saved, iso

PATH: Final = "/api/v1/archive"
"""What links lead to."""
LINK_S: Final = 900
"""How long a link may be followed."""
PIECE_BYTES: Final = 1 << 20
COMPLETE: Final = "checkpoint_complete"
"""The last member of an archive, empty: the SDK's CLI looks for it."""
_ALL: Final = ""


class Archives:
    """Makes links, and serves what they lead to."""

    def __init__(
        self, names: Names, *, hold: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._names = names
        self._clock = names.clock
        self._hold = hold

    async def archive(self, request: web.Request) -> web.Response:
        """Tell the link to a tar of some weights."""
        saved = await self._saved(request)
        await self._names.files(saved, tenant=request[TENANT])
        end_us = self._end_us()
        url = self._link(request, saved, _ALL, end_us=end_us)
        return web.json_response({"url": url, "expires": iso(end_us)})

    async def files(self, request: web.Request) -> web.Response:
        """Tell the link to each file of some weights."""
        saved, end_us = await self._saved(request), self._end_us()
        found = await self._names.files(saved, tenant=request[TENANT])
        urls = {name: self._link(request, saved, name, end_us=end_us) for name in found}
        return web.json_response({"urls": urls, "expires": iso(end_us)})

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Send what a link leads to."""
        tenant, tinker_path, name = self._read(request.query.get("link", ""))
        saved = await self._names.find(tinker_path, tenant=tenant)
        with self._hold(tenant):
            sizes = await self._names.files(saved, tenant=tenant)
            response = web.StreamResponse(headers={"Cache-Control": "no-store"})
            if name == _ALL:
                response.content_type = "application/x-tar"
                response.content_length = _tar_bytes(sizes)
                pieces = self._tar(saved, sizes, tenant=tenant)
            elif name in sizes:
                response.content_type = "application/octet-stream"
                response.content_length = sizes[name]
                pieces = self._pieces(saved, name, sizes[name], tenant=tenant)
            else:
                raise _refused(f"it is of {name!r:.300}, which {tinker_path} has not", gone=True)
            await response.prepare(request)
            if request.method == "GET":
                await _send(request, response, pieces)
            return response

    def _end_us(self) -> int:
        return self._clock.wall_us() + LINK_S * 1_000_000

    async def _saved(self, request: web.Request) -> Saved:
        parts = [request.match_info[name] for name in ("model_id", "kind", "name")]
        return await self._names.find(SCHEME + "/".join(parts), tenant=request[TENANT])

    def _link(self, request: web.Request, saved: Saved, name: str, *, end_us: int) -> str:
        body = json.dumps([request[TENANT], saved.tinker_path, name, end_us]).encode()
        link = base64.urlsafe_b64encode(self._signature(body) + body).decode().rstrip("=")
        return f"{request.scheme}://{request.host}{PATH}?link={link}"

    def _read(self, link: str) -> tuple[TenantId, str, str]:
        """Return whose weights a link leads to, which, and which file of them."""
        try:
            given = base64.b64decode(link + "=" * (-len(link) % 4), altchars=b"-_", validate=True)
        except ValueError:
            given = b""
        size = hashlib.sha256().digest_size
        if not hmac.compare_digest(given[:size], self._signature(given[size:])):
            raise _refused("this service did not sign it")
        tenant, tinker_path, name, end_us = json.loads(given[size:])
        if end_us <= self._clock.wall_us():
            raise _refused(f"its time was over at {iso(end_us)}", gone=True)
        return tenant, tinker_path, name

    def _signature(self, body: bytes) -> bytes:
        return hmac.digest(self._names.secret.encode(), b"saved weights " + body, "sha256")

    async def _tar(
        self, saved: Saved, sizes: dict[str, int], *, tenant: TenantId
    ) -> AsyncIterator[bytes]:
        for name, size in sizes.items():
            yield _head(name, size)
            async for piece in self._pieces(saved, name, size, tenant=tenant):
                yield piece
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield _head(COMPLETE, 0) + bytes(2 * tarfile.BLOCKSIZE)

    async def _pieces(
        self, saved: Saved, name: str, size: int, *, tenant: TenantId
    ) -> AsyncIterator[bytes]:
        offset = 0
        while offset < size:
            most = min(PIECE_BYTES, size - offset)
            piece = await self._names.read(saved, name, offset, most, tenant=tenant)
            if not piece:
                raise bad_request(
                    f"{saved.tinker_path}: {name} was cut at {offset} of {size} bytes"
                )
            yield piece
            offset += len(piece)


async def _send(
    request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[bytes]
) -> None:
    """Send pieces; what cannot be read after the head has gone ends the connection."""
    try:
        async for piece in pieces:
            await response.write(piece)
        await response.write_eof()
    except (PlexError, ConnectionError):
        request.protocol.force_close()


def _head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _tar_bytes(sizes: dict[str, int]) -> int:
    """Return how long a tar of files of these sizes is."""
    heads = sum(len(_head(name, size)) for name, size in (*sizes.items(), (COMPLETE, 0)))
    bodies = sum(size + -size % tarfile.BLOCKSIZE for size in sizes.values())
    return heads + bodies + 2 * tarfile.BLOCKSIZE


def _refused(why: str, *, gone: bool = False) -> PlexError:
    code = ErrorCode.RESULT_GONE if gone else ErrorCode.FORBIDDEN
    return PlexError(code, f"the link leads nowhere: {why}; ask for another")

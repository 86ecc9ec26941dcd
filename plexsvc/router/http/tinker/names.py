"""Names of saved weights, `tinker://MODEL/weights/NAME`: what each stands for, and until when.

A name belongs to a tenant, and is a record in the store that outlives the session that made it. Its
files lie in the tenant's own directory. A name whose time is over is unknown from then on; its
files go when the tenant's names are looked at next.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import paths
from plexsvc.clock import Clock
from plexsvc.errors import bad_request, not_found
from plexsvc.ids import TenantId
from plexsvc.paths import CheckedPath
from plexsvc.router.api import SchedulerApi
from plexsvc.router.http.tinker.records import Records
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots

SCHEME: Final = "tinker://"
KINDS: Final[Mapping[str, str]] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
"""What comes after the model in a name, and what the SDK calls such a checkpoint."""
MAX_TTL_S: Final = 10 * 366 * 86_400
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}")
_PREFIX: Final = "name/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Saved weights."""

    model_id: str
    kind: str
    """A key of `KINDS`."""
    name: str
    base_model: str
    path: str
    """Their directory, below the tenant's own."""
    request_id: str
    """The request that saved them."""
    at_us: int
    expires_us: int = 0
    """0: never."""
    user_metadata: dict[str, str] | None = None
    lora: dict[str, Any] | None = None
    """What a record has of adapters, if they are that."""
    nbytes: int = field(default=0)

    @property
    def tinker_path(self) -> str:
        """Return the name that a client has for them."""
        return f"{SCHEME}{self.model_id}/{self.kind}/{self.name}"

    def told(self) -> dict[str, Any]:
        """Return them as the SDK's `Checkpoint`."""
        return {
            "checkpoint_id": f"{self.kind}/{self.name}",
            "checkpoint_type": KINDS[self.kind],
            "time": iso(self.at_us),
            "tinker_path": self.tinker_path,
            "size_bytes": self.nbytes,
            "user_metadata": self.user_metadata,
            "expires_at": iso(self.expires_us) if self.expires_us else None,
        }


class Names:
    """The names of all tenants."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        *,
        roots: Roots,
        looks: Looks,
        clock: Clock,
        secret: str,
    ) -> None:
        self._records = Records(scheduler)
        self._roots = roots
        self._looks = looks
        self.clock = clock
        self.secret = secret
        """What links to their files are signed with."""

    async def check_model(self, directory: str, *, tenant: TenantId) -> None:
        """Refuse a base model that a tenant has no directory of.

        Raises:
            PlexError: `unknown_model`; `unavailable` when its file system does not answer.
        """
        spec = pb.DeploymentSpec(model=directory)
        await self._looks.look(tenant, partial(self._roots.place_model, spec, tenant=tenant))

    def new(self, saved: Saved, ttl_seconds: Any) -> Saved:
        """Return it as of now, with its time to live.

        Raises:
            PlexError: `bad_request` for a name or a time that cannot be.
        """
        if not _NAME.fullmatch(saved.name):
            raise bad_request(
                f"name {saved.name!r:.140}: it is 1 to 128 of a-z A-Z 0-9 . _ -, and begins with a "
                "letter or digit",
                field="path",
            )
        now_us = self.clock.wall_us()
        return replace(saved, at_us=now_us, expires_us=_end_us(ttl_seconds, now_us=now_us))

    async def all(self, tenant: TenantId, *, model_id: str = "") -> list[Saved]:
        """Return a tenant's names, or those of a model, oldest first; drop those that are over."""
        if not model_id.isprintable():  # a store may not take such texts
            return []
        prefix = f"{_PREFIX}{SCHEME}" + (f"{model_id}/" if model_id else "")
        found = await self._records.find(tenant, prefix)
        every = [Saved(**json.loads(body)) for body in found.values()]
        now_us = self.clock.wall_us()
        over = [one for one in every if 0 < one.expires_us <= now_us]
        for one in over:
            await self.drop(one, tenant=tenant)
        return sorted(
            (one for one in every if one not in over), key=lambda one: (one.at_us, one.name)
        )

    async def find(self, tinker_path: str, *, tenant: TenantId) -> Saved:
        """Return what a name stands for.

        Raises:
            PlexError: `not_found`, whether it is over, another tenant's or nobody's.
        """
        model_id, _, rest = tinker_path.removeprefix(SCHEME).partition("/")
        for one in await self.all(tenant, model_id=model_id) if rest else ():
            if one.tinker_path == tinker_path:
                return one
        raise not_found(
            f"{tinker_path!r:.300} is no name of tenant {tenant!r}, or its time is over"
        )

    async def keep(self, saved: Saved, *, tenant: TenantId) -> None:
        """Remember a name; durable on return."""
        await self._records.keep(tenant, {_key(saved): asdict(saved)})

    async def drop(self, saved: Saved, *, tenant: TenantId) -> None:
        """Forget a name, and remove its files."""
        await self._records.keep(tenant, {}, gone=[_key(saved)])
        await self.remove(saved.path, tenant=tenant)

    async def remove(self, path: str, *, tenant: TenantId) -> None:
        """Remove the files of weights that have no name any more."""
        directory = self._roots.own(tenant) / path
        remove = partial(shutil.rmtree, directory, ignore_errors=True)
        await self._looks.look(tenant, remove)

    async def extend(self, saved: Saved, ttl_seconds: Any, *, tenant: TenantId) -> None:
        """Give a name another time to live, from now on; none: it does not end."""
        end_us = _end_us(ttl_seconds, now_us=self.clock.wall_us())
        await self.keep(replace(saved, expires_us=end_us), tenant=tenant)

    async def sized(self, saved: Saved, *, tenant: TenantId) -> Saved:
        """Return it with the bytes of its files."""
        return replace(saved, nbytes=sum((await self.files(saved, tenant=tenant)).values()))

    async def files(self, saved: Saved, *, tenant: TenantId) -> dict[str, int]:
        """Return the files of weights, with their bytes.

        Raises:
            PlexError: `bad_request` when they cannot be opened.
        """
        place = self._place(saved, tenant)

        def measure() -> dict[str, int]:
            with paths.opened_directory(place) as directory:
                names = [one for one in paths.file_names(place) if not one.startswith(".")]
                return {name: (directory / name).stat().st_size for name in names}

        return await self._looks.look(tenant, measure)

    async def read(
        self, saved: Saved, name: str, offset: int, nbytes: int, *, tenant: TenantId
    ) -> bytes:
        """Return at most so many bytes of a file of weights.

        Raises:
            PlexError: `bad_request` when it cannot be opened.
        """
        root = self._place(saved, tenant)
        place = CheckedPath(path=root.path / name, root=root.root)
        read = partial(paths.read_file, place, offset=offset, nbytes=nbytes)
        return await self._looks.look(tenant, read)

    def _place(self, saved: Saved, tenant: TenantId) -> CheckedPath:
        own = self._roots.own(tenant)
        return CheckedPath(path=own / saved.path, root=own)


def iso(at_us: int) -> str:
    """Return a time of the wall clock as the SDK reads it."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()


def _key(saved: Saved) -> str:
    return f"{_PREFIX}{saved.tinker_path}"


def _end_us(ttl_seconds: Any, *, now_us: int) -> int:
    if ttl_seconds is None:
        return 0
    is_whole = isinstance(ttl_seconds, int) and not isinstance(ttl_seconds, bool)
    if not is_whole or not 0 < ttl_seconds <= MAX_TTL_S:
        raise bad_request(
            f"ttl_seconds is {ttl_seconds!r:.40}; give a whole number of seconds from 1 to "
            f"{MAX_TTL_S}, or null for no end",
            field="ttl_seconds",
        )
    return now_us + int(ttl_seconds) * 1_000_000

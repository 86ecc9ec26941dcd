"""Checkpoints that deployments made of their steps: listed, compared with their seals, exported.

They lie at `JOB_ID/DEPLOYMENT@STEP` below their tenant's directory, or in its object store. A
request may give the job's name for its id, and leave the step out for the newest.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from google.protobuf.json_format import ParseDict, ParseError

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found
from plexsvc.ids import TenantId
from plexsvc.paths import CheckedPath
from plexsvc.router import bounds
from plexsvc.router.looks import Looks
from plexsvc.router.roots import REMEDY, Roots
from plexsvc.weights import checkpoints, object_store
from plexsvc.weights.checkpoints import SCRATCH, STATE_FILE, Seal
from plexsvc.weights.object_store import StoredCheckpoint
from plexsvc.weights.owner import SEAL, check_owner

NAME: Final = re.compile(r"([^/@]+)/([^/@]+?)(?:@(\d+))?")
"""A job's id or name, a deployment's name, and a step."""

MAX_STATE_BYTES: Final = 64 << 20
MAX_LISTED: Final = 4096
LONG_S: Final = 3600.0
"""How long it may take to read all of a checkpoint, or to copy it."""


class Checkpoints:
    """The checkpoints of all tenants."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._looks = Looks(limit_s=LONG_S)

    async def get(
        self, request: pb.GetCheckpointsRequest, *, tenant: TenantId
    ) -> pb.GetCheckpointsReply:
        """Return a tenant's checkpoints, or one by its name; compare that with its seal if asked.

        Raises:
            PlexError: `bad_request`, `not_found`, `checkpoint_damaged`.
        """
        bounds.check(request)
        return await self._looks.look(tenant, partial(self._get, request, tenant=tenant))

    async def change(
        self, request: pb.ChangeCheckpointRequest, *, tenant: TenantId
    ) -> pb.Checkpoint:
        """Export a checkpoint's weights as a model directory, or delete it.

        Raises:
            PlexError: `bad_request`, `not_found`, `forbidden`, `checkpoint_damaged`.
        """
        bounds.check(request)
        return await self._looks.look(tenant, partial(self._change, request, tenant=tenant))

    def _get(
        self, request: pb.GetCheckpointsRequest, *, tenant: TenantId
    ) -> pb.GetCheckpointsReply:
        if not request.name:
            known = self._all(tenant)
            return pb.GetCheckpointsReply(checkpoints=[one.checkpoint for one in known])
        found = _find(request.name, self._all(tenant))
        with found.opened(tenant, keeps=False) as (directory, seal):
            for name in sorted(seal.names) if seal is not None else ():
                nbytes = (directory / name).stat().st_size
                found.checkpoint.files.append(pb.CheckpointFile(name=name, nbytes=nbytes))
                if seal is not None and request.verifies:
                    seal.check_file(name)
        return pb.GetCheckpointsReply(checkpoints=[found.checkpoint])

    def _change(self, request: pb.ChangeCheckpointRequest, *, tenant: TenantId) -> pb.Checkpoint:
        found = _find(request.name, self._all(tenant))
        name = found.checkpoint.name
        if request.export_to:
            what = f"export of {name} by tenant {tenant!r}"
            roots = self._roots.writable(tenant)
            target = paths.resolve(request.export_to, roots, what=what, remedy=REMEDY)
            _export(found, target, tenant=tenant)
        elif object_store.is_url(found.place):
            for one in object_store.attempts(found.place.rpartition("/")[0]):
                if one.name == name.partition("/")[2]:
                    object_store.remove(one.url)
        else:
            place = Path(found.place)
            above = CheckedPath(path=place.parent, root=Path(found.root))
            with paths.opened_directory(above) as parent:
                try:
                    checkpoints.remove(parent / place.name, tenant=tenant)
                except OSError as error:
                    raise bad_request(f"{name} not deleted: {error}") from error
        return found.checkpoint

    def _all(self, tenant: TenantId) -> list[_Found]:
        """Return a tenant's checkpoints, oldest first."""
        found, store = list[_Found](), self._roots.store(tenant)
        if not store or self._roots.writable(tenant):
            found += _kept(self._roots.own(tenant), tenant=tenant)
        stored = (_stored(one, store) for one in object_store.attempts(store))
        found += [one for one in stored if one is not None]
        return sorted(found, key=_Found.order)


@dataclass(frozen=True, slots=True)
class _Found:
    checkpoint: pb.Checkpoint
    place: str
    root: str

    def opened(
        self, tenant: TenantId, *, keeps: bool
    ) -> AbstractContextManager[tuple[Path, Seal | None]]:
        return object_store.opened(self.place, self.root, tenant=tenant, keeps=keeps)

    def order(self) -> tuple[int, int, str]:
        return (self.checkpoint.made_us, self.checkpoint.step, self.checkpoint.name)


def _kept(root: Path, *, tenant: TenantId) -> list[_Found]:
    """Return the checkpoints in a tenant's directory."""
    found: list[_Found] = []
    for seal in root.glob(f"*/*@*/{SEAL}"):
        if len(found) >= MAX_LISTED:
            raise bad_request(f"{root} has more than {MAX_LISTED} checkpoints; delete some")
        if (known := _read(seal, root, tenant=tenant)) is not None:
            found.append(_Found(known, str(seal.parent), str(root)))
    return found


def _read(seal: Path, root: Path, *, tenant: TenantId) -> pb.Checkpoint | None:
    """Return what a checkpoint says of itself; None for one that was made otherwise, or is gone."""
    directory = seal.parent
    try:
        check_owner(directory, tenant=tenant, what="checkpoint")
        place = CheckedPath(path=directory / STATE_FILE, root=root)
        return _described(
            paths.read_file(place, nbytes=MAX_STATE_BYTES),
            name=str(directory.relative_to(root)),
            nbytes=sum(file.stat().st_size for file in directory.iterdir()),
            made_us=seal.stat().st_mtime_ns // 1000,
        )
    except (OSError, PlexError):
        return None


def _stored(one: StoredCheckpoint, store: str) -> _Found | None:
    """Return a sealed checkpoint of a store; None for an attempt, or one that was removed since.

    Raises:
        PlexError: as `object_store.reached`.
    """
    try:
        with object_store.reached(f"{one.url}/{STATE_FILE}") as (fs, path):
            text = fs.cat_file(path) if one.made_us else b""
    except PlexError as error:
        if error.code != ErrorCode.NOT_FOUND:
            raise
        return None
    nbytes = sum(one.files.values())
    known = _described(text, name=one.name, nbytes=nbytes, made_us=one.made_us)
    return None if known is None else _Found(known, one.url, store)


def _described(text: bytes, *, name: str, nbytes: int, made_us: int) -> pb.Checkpoint | None:
    try:
        about = json.loads(text)
        return pb.Checkpoint(
            name=name,
            job=about["job"],
            step=about["step"],
            position="" if about["position"] is None else json.dumps(about["position"]),
            spec=ParseDict(about["spec"], pb.DeploymentSpec(), ignore_unknown_fields=True),
            nbytes=nbytes,
            made_us=made_us,
        )
    except (ValueError, KeyError, TypeError, ParseError):
        return None


def _find(name: str, known: Sequence[_Found]) -> _Found:
    """Return the newest checkpoint that a name may mean.

    Raises:
        PlexError: `bad_request` for no name; `not_found`.
    """
    asked = NAME.fullmatch(name)
    if asked is None:
        raise bad_request(f"{name!r:.80} names no checkpoint: give JOB/DEPLOYMENT@STEP")
    job, deployment, step = asked.groups()
    found = [
        one
        for one in known
        for (job_id, _, series) in [one.checkpoint.name.partition("/")]
        if job in {one.checkpoint.job, job_id}
        and series.partition("@")[0] == deployment
        and (step is None or one.checkpoint.step == int(step))
    ]
    if not found:
        newest = ", ".join(one.checkpoint.name for one in known[-4:]) or "none"
        raise not_found(f"no checkpoint {name!r}; the newest: {newest} (`plexctl ckpt list`)")
    return found[-1]


def _export(found: _Found, target: CheckedPath, *, tenant: TenantId) -> None:
    """Copy what a model directory has to one that is not there yet, once it is compared."""
    with (
        found.opened(tenant, keeps=True) as (directory, seal),
        paths.opened_directory(
            CheckedPath(path=target.path.parent, root=target.root), make=True
        ) as above,
    ):
        if (above / target.path.name).exists():
            raise bad_request(f"{target.path} exists; export to another path")
        checkpoints.check_model(directory, seal)
        scratch = above / f".{target.path.name}{SCRATCH}-{secrets.token_hex(4)}"
        try:
            scratch.mkdir()
            for file in directory.iterdir():
                if file.name != SEAL and not checkpoints.is_ours_alone(file.name):
                    shutil.copyfile(file, scratch / file.name)
            checkpoints.seal(scratch, {}, tenant=tenant)
            scratch.rename(above / target.path.name)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise bad_request(
                f"{found.checkpoint.name} not exported to {target.path}: {error}"
            ) from error

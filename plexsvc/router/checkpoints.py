"""Checkpoints that deployments made of their steps: listed, compared with their seals, exported.

They lie at `JOB_ID/DEPLOYMENT@STEP` below their tenant's directory. A request may give the job's
name for its id, and leave the step out for the newest.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from google.protobuf.json_format import ParseDict, ParseError

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import paths
from plexsvc.errors import PlexError, bad_request, not_found
from plexsvc.ids import TenantId
from plexsvc.paths import CheckedPath
from plexsvc.router import bounds
from plexsvc.router.looks import Looks
from plexsvc.router.roots import REMEDY, Roots
from plexsvc.weights import checkpoints
from plexsvc.weights.checkpoints import SCRATCH, STATE_FILE
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
        root = self._roots.own(tenant)
        if not request.name:
            return pb.GetCheckpointsReply(checkpoints=_all(root, tenant=tenant))
        found = _find(request.name, root, tenant=tenant)
        with _opened(found, root) as directory:
            seal = checkpoints.read_seal(directory)
            for name in sorted(seal.names) if seal is not None else ():
                nbytes = (directory / name).stat().st_size
                found.files.append(pb.CheckpointFile(name=name, nbytes=nbytes))
                if seal is not None and request.verifies:
                    seal.check_file(name)
        return pb.GetCheckpointsReply(checkpoints=[found])

    def _change(self, request: pb.ChangeCheckpointRequest, *, tenant: TenantId) -> pb.Checkpoint:
        root = self._roots.own(tenant)
        found = _find(request.name, root, tenant=tenant)
        if request.export_to:
            what = f"export of {found.name} by tenant {tenant!r}"
            roots = self._roots.writable(tenant)
            target = paths.resolve(request.export_to, roots, what=what, remedy=REMEDY)
            _export(found, root, target, tenant=tenant)
            return found
        place = root / found.name
        with paths.opened_directory(CheckedPath(path=place.parent, root=root)) as parent:
            try:
                checkpoints.remove(parent / place.name, tenant=tenant)
            except OSError as error:
                raise bad_request(f"{found.name} not deleted: {error}") from error
        return found


def _all(root: Path, *, tenant: TenantId) -> list[pb.Checkpoint]:
    """Return a tenant's checkpoints, oldest first."""
    found: list[pb.Checkpoint] = []
    for seal in root.glob(f"*/*@*/{SEAL}"):
        if len(found) >= MAX_LISTED:
            raise bad_request(f"{root} has more than {MAX_LISTED} checkpoints; delete some")
        known = _read(seal, root, tenant=tenant)
        if known is not None:
            found.append(known)
    return sorted(found, key=lambda one: (one.made_us, one.name))


def _read(seal: Path, root: Path, *, tenant: TenantId) -> pb.Checkpoint | None:
    """Return what a checkpoint says of itself; None for one that was made otherwise, or is gone."""
    directory = seal.parent
    try:
        check_owner(directory, tenant=tenant, what="checkpoint")
        place = CheckedPath(path=directory / STATE_FILE, root=root)
        about = json.loads(paths.read_file(place, nbytes=MAX_STATE_BYTES))
        return pb.Checkpoint(
            name=str(directory.relative_to(root)),
            job=about["job"],
            step=about["step"],
            position="" if about["position"] is None else json.dumps(about["position"]),
            spec=ParseDict(about["spec"], pb.DeploymentSpec(), ignore_unknown_fields=True),
            nbytes=sum(file.stat().st_size for file in directory.iterdir()),
            made_us=seal.stat().st_mtime_ns // 1000,
        )
    except (OSError, PlexError, ValueError, KeyError, TypeError, ParseError):
        return None


def _find(name: str, root: Path, *, tenant: TenantId) -> pb.Checkpoint:
    """Return the newest checkpoint that a name may mean.

    Raises:
        PlexError: `bad_request` for no name; `not_found`.
    """
    asked = NAME.fullmatch(name)
    if asked is None:
        raise bad_request(f"{name!r:.80} names no checkpoint: give JOB/DEPLOYMENT@STEP")
    job, deployment, step = asked.groups()
    known = _all(root, tenant=tenant)
    found = [
        one
        for one in known
        if job in {one.job, one.name.partition("/")[0]}
        and one.name.partition("/")[2].partition("@")[0] == deployment
        and (step is None or one.step == int(step))
    ]
    if not found:
        newest = ", ".join(one.name for one in known[-4:]) or "none"
        raise not_found(f"no checkpoint {name!r}; the newest: {newest} (`plexctl ckpt list`)")
    return found[-1]


@contextmanager
def _opened(found: pb.Checkpoint, root: Path) -> Iterator[Path]:
    with paths.view(CheckedPath(path=root / found.name, root=root)) as directory:
        yield directory


def _export(found: pb.Checkpoint, root: Path, target: CheckedPath, *, tenant: TenantId) -> None:
    """Copy what a model directory has to one that is not there yet, once it is compared."""
    with (
        _opened(found, root) as directory,
        paths.opened_directory(
            CheckedPath(path=target.path.parent, root=target.root), make=True
        ) as above,
    ):
        if (above / target.path.name).exists():
            raise bad_request(f"{target.path} exists; export to another path")
        checkpoints.check_model(directory)
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
            raise bad_request(f"{found.name} not exported to {target.path}: {error}") from error

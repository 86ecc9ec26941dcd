"""Roots of tenants: where their models, checkpoints and exports may lie."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.families import unknown_model
from plexsvc.ids import TenantId
from plexsvc.paths import CheckedPath
from plexsvc.router.config import RouterConfig
from plexsvc.router.looks import Looks
from plexsvc.weights import object_store

PATH_KINDS: Final = frozenset({"save", "load", "export"})
"""Operations that name a path."""

REMEDY: Final = (
    "give a name below one of them, or have the operator add the directory: "
    "`plexctl up --root DIR`, or `[router.roots]` in the configuration"
)


class Roots:
    """Resolves the paths of requests; the request travels on with what replaces them."""

    def __init__(self, config: RouterConfig, looks: Looks) -> None:
        self._config, self._looks = config, looks

    async def place_operation(self, operation: operations_pb2.Operation) -> None:
        """Resolve the path that an operation of `operation.tenant` names, if it names one.

        Raises:
            PlexError: `bad_request`; `unavailable` when its file system does not answer.
        """
        kind = operation.WhichOneof("body")
        if kind in PATH_KINDS:
            look = partial(self._fill, kind, operation)
            await self._looks.look(TenantId(operation.tenant), look)

    def place_model(self, spec: service_pb2.DeploymentSpec, *, tenant: TenantId) -> CheckedPath:
        """Resolve the model that a deployment names, and return where it is.

        Raises:
            PlexError: `unknown_model`.
        """
        try:
            found = paths.resolve(
                spec.model,
                self._readable(tenant),
                what=f"model of tenant {tenant!r}",
                remedy=REMEDY,
            )
        except PlexError as error:
            raise PlexError(ErrorCode.UNKNOWN_MODEL, error.message, model=spec.model) from error
        if not found.path.is_dir():
            raise unknown_model(spec.model, "there is no such directory")
        spec.model, spec.model_root = str(found.path), str(found.root)
        return found

    def place_checkpoints(self, spec: service_pb2.DeploymentSpec, *, tenant: TenantId) -> None:
        """Say where the checkpoints of a deployment go, if it makes any.

        Raises:
            PlexError: `bad_request` when the tenant has no place for them.
        """
        spec.checkpoint_root = ""
        if spec.checkpoint_every:
            spec.checkpoint_root = self.store(tenant) or str(self.own(tenant))

    def store(self, tenant: TenantId) -> str:
        """Return the URL below which a tenant's checkpoints are made, if not in its directory."""
        url = self._config.checkpoint_stores.get(tenant, "")
        return f"{url.rstrip('/')}/{tenant}" if url else ""

    def own(self, tenant: TenantId) -> Path:
        """Return the directory below which a tenant's checkpoints are made.

        Raises:
            PlexError: `bad_request` when it has none.
        """
        if not (found := self.writable(tenant)):
            raise bad_request(
                f"tenant {tenant!r} has no directory for checkpoints; ask an operator for one "
                "(router.roots)"
            )
        return Path(os.path.realpath(found[0]))

    def _fill(self, kind: str, operation: operations_pb2.Operation) -> None:
        body, tenant = getattr(operation, kind), TenantId(operation.tenant)
        roots = self._readable(tenant) if kind == "load" else self.writable(tenant)
        what = f"path of {kind} by tenant {tenant!r}"
        is_here = kind != "load" or any(os.path.lexists(root / body.path) for root in roots)
        if not is_here and (url := object_store.find(self.store(tenant), body.path)):
            body.path, body.root = url, self.store(tenant)
            return
        found = paths.resolve(body.path, roots, what=what, remedy=REMEDY)
        body.path, body.root = str(found.path), str(found.root)

    def writable(self, tenant: TenantId) -> tuple[Path, ...]:
        """Return where a tenant may write, the directory of relative paths first."""
        further = self._config.roots.get(tenant, ())
        if self._config.checkpoint_root is None:
            return further
        own = self._config.checkpoint_root / tenant
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (own, *further)

    def _readable(self, tenant: TenantId) -> tuple[Path, ...]:
        return (*self.writable(tenant), *self._config.model_roots)

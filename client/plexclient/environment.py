"""Environment variables that `plexctl submit` sets for a controller; read only here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Address, token, job and certificate file of this controller; empty where not set."""

    address: str = ""
    token: str = ""
    job_id: str = ""
    ca: str = ""
    restarts: int = 0
    """Controllers of the job that died before this one."""


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """Return what is set for this process (or in `variables`)."""
    found = os.environ if variables is None else variables  # noqa: TID251 - the client's one reader
    return Environment(
        address=found.get("PLEX_ADDRESS", ""),
        token=found.get("PLEX_TOKEN", ""),
        job_id=found.get("PLEX_JOB", ""),
        ca=found.get("PLEX_CA", ""),
        restarts=int(found.get("PLEX_RESTARTS", "0")),
    )

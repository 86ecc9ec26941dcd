"""Findings of a node's agent about its host, for `plexctl doctor --cluster`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import node_pb2
from plexsvc.clock import Clock
from plexsvc.node.config import AgentConfig

PACKAGES: Final = ("plexsvc", "torch")
MAX_DIRECTORIES: Final = 10_000
"""Directories below a root that are looked at; models beyond are not compared."""
_STAMP_DIGITS: Final = 16


def examine(
    config: AgentConfig, *, clock: Clock, roots: Sequence[str], unreached: Sequence[str]
) -> node_pb2.Examination:
    """Return what is found on this host; reads the directories of all models."""
    places = [config.runtime_dir, *([config.disk_dir] if config.disk_bytes else [])]
    found = node_pb2.Examination(
        versions=versions(),
        roots=[examine_root(Path(root)) for root in roots],
        unreached=unreached,
        free_bytes={str(place): shutil.disk_usage(place).free for place in places},
    )
    found.wall_us = clock.wall_us()  # as late as can be: directories may have taken long
    return found


def versions() -> dict[str, str]:
    """Return the versions of packages that all nodes have to have in common; "": not installed."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def examine_root(root: Path) -> node_pb2.RootFound:
    """Return what is wrong with a directory of models, or the stamps of those in it."""
    try:
        os.listdir(root)
        models = {str(one.relative_to(root)): stamp(one) for one in _models_below(root)}
    except OSError as error:
        return node_pb2.RootFound(path=str(root), problem=error.strerror or str(error))
    return node_pb2.RootFound(path=str(root), models=models)


def stamp(model: Path) -> str:
    """Return a hash of a model's `config.json` and of the names and sizes of its files.

    Raises:
        OSError: one of them cannot be read.
    """
    summary = sha256((model / "config.json").read_bytes())
    for path in sorted(model.iterdir()):
        if path.is_file():
            summary.update(f"\0{path.name}\0{path.stat().st_size}".encode())
    return summary.hexdigest()[:_STAMP_DIGITS]


def _models_below(root: Path) -> Iterator[Path]:
    for number, (directory, _, files) in enumerate(os.walk(root)):
        if number >= MAX_DIRECTORIES:
            return
        if "config.json" in files:
            yield Path(directory)

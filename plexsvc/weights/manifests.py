"""Manifests of published versions: which to read from, and what complete copies say of ranks.

A version has one manifest per node that holds pieces of it. A *complete* copy holds what managed
state holds between two operations: parameters, masters and moments, the scalars of each rank, and
the last applied number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import xxhash

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest

Scalars = dict[str, int | float | str]

STEPS: Final = "adam_step"
"""The scalar in which backends count the steps of their optimizer."""


def adds_pieces(manifest: VersionManifest, held: Iterable[VersionManifest]) -> bool:
    """Return whether a manifest has boxes that no manifest of `held` has."""
    boxes = {_key(piece) for other in held for piece in other.pieces}
    return not boxes.issuperset(map(_key, manifest.pieces))


def is_alike(one: VersionManifest, other: VersionManifest) -> bool:
    """Return whether two versions have the same pieces at the same places."""
    return one.nbytes == other.nbytes and list(one.pieces) == list(other.pieces)


def part_name(manifest: VersionManifest) -> str:
    """Return a name that two parts of one version share if either will do for the other."""
    told = xxhash.xxh3_128()
    for key in sorted(repr(_key(piece)) for piece in manifest.pieces):
        told.update(key.encode())
    told.update(manifest.scalars_json.encode())
    return told.hexdigest()


def scalars_by_rank(copies: Sequence[VersionManifest]) -> dict[int, Scalars]:
    """Return the scalars of each rank that complete copies know."""
    found: dict[int, Scalars] = {}
    for copy in copies:
        table = json.loads(copy.scalars_json or "{}")
        found |= {int(rank): dict(scalars) for rank, scalars in table.items()}
    return found


def applied_seq(copies: Sequence[VersionManifest]) -> int:
    """Return the last number that every rank had applied; 0 without copies."""
    return min((copy.applied_seq for copy in copies), default=0)


def steps(scalars: Mapping[int, Scalars]) -> int:
    """Return how many steps the optimizer of a state with these scalars has taken."""
    return max((int(one.get(STEPS, 0)) for one in scalars.values()), default=0)


def _key(piece: CanonicalPiece) -> tuple[object, ...]:
    return piece.kind, piece.name, tuple(piece.start), tuple(piece.size)

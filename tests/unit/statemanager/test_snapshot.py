"""Digests are the same however many nodes hold the state, gradients included."""

from __future__ import annotations

import numpy as np

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc.statemanager import snapshot
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.weights import pieces
from plexsvc.weights.reading import OpenedPart

RANKS = (0, 1)


def of_rank(rank: int, *, kind: str) -> CanonicalPiece:
    """A half of a parameter, or the whole gradient of one rank."""
    size = [4] if kind == "grad" else [2]
    start = [0] if kind == "grad" else [2 * rank]
    return CanonicalPiece(
        kind=kind,
        name="t",
        global_shape=[4],
        start=start,
        size=size,
        dtype="U8",
        stride=[1],
        rank=rank,
    )


def copy_of(*ranks: int, gradient: int) -> OpenedPart:
    index = [of_rank(rank, kind=kind) for kind in ("param", "grad") for rank in ranks]
    placed, nbytes = pieces.pack(pieces.distinct(index), region="published")
    data = np.zeros(nbytes, dtype=np.uint8)
    for source, target in placed:
        value = 10 * source.rank + gradient if source.kind == "grad" else source.rank
        pieces.piece_view(data, target)[...] = value
    manifest = VersionManifest(pieces=[target for _, target in placed], nbytes=nbytes)
    return OpenedPart(manifest=manifest, data=data.data)


def digests(*copies: OpenedPart) -> dict[str, str]:
    return snapshot.digests(snapshot.of_copies(copies), WaitingCaller())


def test_one_node_and_two_have_the_same_digests() -> None:
    one = digests(copy_of(*RANKS, gradient=1))
    assert sorted(one) == ["grad", "param"]
    assert digests(*(copy_of(rank, gradient=1) for rank in RANKS)) == one


def test_another_gradient_on_any_node_is_another_digest() -> None:
    one = digests(copy_of(*RANKS, gradient=1))
    other = digests(copy_of(0, gradient=1), copy_of(1, gradient=2))
    assert other["param"] == one["param"]
    assert other["grad"] != one["grad"]

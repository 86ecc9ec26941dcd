"""Manifests of a version: which nodes add pieces, and what complete copies say of ranks."""

from __future__ import annotations

import json

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc.weights.manifests import adds_pieces, applied_seq, part_name, scalars_by_rank


def manifest(*starts: int) -> VersionManifest:
    parts = [CanonicalPiece(kind="param", name="w", start=[low, 0], size=[2, 5]) for low in starts]
    return VersionManifest(pieces=parts)


def test_a_copy_adds_no_pieces_and_another_part_does() -> None:
    assert not adds_pieces(manifest(0), [manifest(0, 2)])
    assert adds_pieces(manifest(0, 2, 4), [manifest(0), manifest(2)])
    assert adds_pieces(manifest(0), [])


def test_complete_copies_of_all_nodes_know_every_rank_and_the_last_number_all_had_applied() -> None:
    copies = [
        VersionManifest(applied_seq=7, scalars_json=json.dumps({"0": {"adam_step": 3}})),
        VersionManifest(applied_seq=5, scalars_json=json.dumps({"1": {"adam_step": 2}})),
    ]
    assert scalars_by_rank(copies) == {0: {"adam_step": 3}, 1: {"adam_step": 2}}
    assert applied_seq(copies) == 5
    assert applied_seq([]) == 0


def test_parts_have_one_name_if_either_will_do() -> None:
    assert part_name(manifest(0, 2)) == part_name(manifest(2, 0))
    assert part_name(manifest(0)) != part_name(manifest(2))
    other = manifest(0)
    other.scalars_json = json.dumps({"1": {"adam_step": 2}})
    assert part_name(manifest(0)) != part_name(other), "what ranks know is each node's own"

"""A version is read as one, whichever nodes hold its pieces."""

from __future__ import annotations

import numpy as np
import pytest

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc.errors import PlexError
from plexsvc.weights.boxes import Box
from plexsvc.weights.reading import OpenedPart, VersionReader

ARRAY = np.arange(24, dtype=np.float32).reshape(6, 4)


def part(low: int, high: int, *, kind: str = "param", offset: int = 0) -> OpenedPart:
    """Return the rows `[low, high)` of `ARRAY` as one node published them."""
    piece = CanonicalPiece(
        kind=kind, name="w", dtype="F32", region="published", offset=offset,
        global_shape=[6, 4], start=[low, 0], size=[high - low, 4], stride=[4, 1],
    )  # fmt: skip
    data = memoryview(ARRAY[low:high].tobytes())
    return OpenedPart(manifest=VersionManifest(pieces=[piece]), data=data)


def test_boxes_are_read_across_nodes() -> None:
    reader = VersionReader([part(0, 2), part(2, 6)])
    tensor, box = reader.find("w"), Box((1, 1), (3, 2))
    assert tensor is not None
    assert reader.read(tensor, box).view(np.float32).tolist() == ARRAY[1:4, 1:3].tolist()
    (first, second) = reader.cover(tensor, box).overlaps
    assert reader.view(tensor, first).view(np.float32).tolist() == ARRAY[1:2, 1:3].tolist()
    assert not reader.view(tensor, second).flags.writeable


def test_tensors_of_the_optimizer_have_names_of_their_own() -> None:
    reader = VersionReader([part(0, 6), part(0, 3, kind="exp_avg")])
    moment = reader.find("exp_avg/w")
    assert moment is not None
    assert reader.cover(moment, Box.whole((6, 4))).missing == [Box((3, 0), (3, 4))]
    assert reader.find("exp_avg") is None


def test_a_piece_beyond_its_bytes_is_refused() -> None:
    with pytest.raises(PlexError, match="does not fit"):
        VersionReader([part(0, 6, offset=64)])

"""A cluster's directory: one cluster at a time, and a card that reads back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plexsvc.cluster.places import find_cluster, held, holder, read_card
from plexsvc.errors import ErrorCode, PlexError


def test_a_state_directory_holds_one_cluster(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with held(tmp_path), pytest.raises(PlexError) as caught, held(tmp_path):
        pass
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert f"(pid {os.getpid()})" in caught.value.message
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"port": 1}'])
def test_a_card_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(PlexError, match=r"cluster\.json"):
        read_card(tmp_path)


def test_a_cluster_that_comes_up_is_not_taken_for_none(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(PlexError, match="is coming up or going down") as caught:
        find_cluster(tmp_path, address=None, token=None)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(PlexError, match="start one with `plexctl up`"):
        find_cluster(tmp_path, address=None, token=None)

"""Keys of a cluster: made once, kept privately, read by nobody else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.keys import keep_keys, read_keys
from tests.rigs.keys import FOREIGN, KEYS


def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = keep_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keep_keys(path) == read_keys(path) == made
    assert made not in {KEYS, FOREIGN}
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keep_keys(path)
    path.chmod(0o640)
    with pytest.raises(PlexError, match="chmod 600") as refused:
        read_keys(path)
    assert refused.value.code is ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("text", [None, "", "{}", '{"secret": "a"}', "[]"])
def test_a_file_that_holds_no_keys_is_refused_with_where_to_get_them(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    with pytest.raises(PlexError, match="plexctl up"):
        read_keys(path)


def test_neither_secret_nor_private_key_is_shown() -> None:
    shown = repr(KEYS)
    assert KEYS.secret not in shown
    assert "PRIVATE" not in shown

"""Owners of checkpoints: read from marks that may be anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import owner
from plexsvc.weights.owner import SEAL, check_owner


def check(directory: Path, *, tenant: str = "acme") -> None:
    check_owner(directory, tenant=tenant, what="load:")


def test_a_checkpoint_is_its_tenants_whatever_the_size_of_its_mark(tmp_path: Path) -> None:
    check(tmp_path)
    for blocks in (1, owner.QUICK_BYTES // 10):
        files = {"model.safetensors": {"nbytes": 1, "blocks": ["0" * 32] * blocks}}
        mark = {"block_bytes": 1, "files": files, "tenant": 'a "b" \\ c'}
        (tmp_path / SEAL).write_text(json.dumps(mark))
        check(tmp_path, tenant='a "b" \\ c')
        with pytest.raises(PlexError, match="another tenant") as refused:
            check(tmp_path)
        assert refused.value.code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"{",
        b"[" * 99_999,
        b"\xff",
        b"[]," * (1 << 20),
        b"9" * 5000,
        b" " * (2 << 20) + b'"a"}',
    ],
)
def test_a_mark_that_cannot_be_read_is_refused(mark: bytes, tmp_path: Path) -> None:
    (tmp_path / SEAL).write_bytes(mark)
    with pytest.raises(PlexError, match=f"its {SEAL} cannot be read"):
        check(tmp_path)


def test_a_mark_that_is_no_file_or_has_no_end_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SEAL)
    with pytest.raises(PlexError, match="no regular file"):
        check(tmp_path)
    (tmp_path / SEAL).unlink()
    (tmp_path / SEAL).symlink_to("/dev/zero")
    with pytest.raises(PlexError, match="no regular file"):
        check(tmp_path)
    (tmp_path / SEAL).unlink()
    with (tmp_path / SEAL).open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(PlexError, match="at most"):
        check(tmp_path)

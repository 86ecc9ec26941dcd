"""`plexctl up`: what its options make of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.cli.commands.up import read_config
from plexsvc.errors import PlexError


def test_a_root_is_added_to_those_of_the_tenant_on_the_card(tmp_path: Path) -> None:
    assert read_config(None, state_dir=None, roots=[tmp_path]).router.roots == {
        "default": (tmp_path,)
    }
    text = '[tokens]\n"t" = "lab"\n"u" = "rival"\n[router.roots]\nlab = ["/data"]\n'
    (tmp_path / "c.toml").write_text(text)
    config = read_config(tmp_path / "c.toml", state_dir=None, roots=[tmp_path])
    assert config.router.roots == {"lab": (Path("/data"), tmp_path)}


def test_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match=r"--root .* no such directory"):
        read_config(None, state_dir=None, roots=[tmp_path / "nowhere"])


def test_who_gives_no_file_gets_a_page(tmp_path: Path) -> None:
    assert read_config(None, state_dir=tmp_path).router.http_listen == "127.0.0.1:0"
    (tmp_path / "c.toml").write_text("")
    assert not read_config(tmp_path / "c.toml", state_dir=tmp_path).router.http_listen

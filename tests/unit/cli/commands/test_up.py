"""`plexctl up`: what its options make of the configuration."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plexsvc.cli.commands.up import read_config, stop
from plexsvc.errors import PlexError
from plexsvc.node import found

HOLD = """
import pathlib, sys, time
from plexsvc.cluster.places import held
with held(pathlib.Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(600)
"""
"""A service that takes over and has not got to its agents yet: it ends and leaves them."""


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


@pytest.mark.parametrize("keep", [True, False])
def test_down_ends_agents_that_a_service_had_not_taken_over_yet(tmp_path: Path, keep: bool) -> None:
    logs = tmp_path / "nodes" / "node" / "logs"
    logs.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with (
        subprocess.Popen(["sleep", "600"]) as agent,
        subprocess.Popen(command, stdout=subprocess.PIPE) as service,
    ):
        found.record(logs, node_id="node", pid=agent.pid, address="unix:/agent")
        assert service.stdout is not None
        assert service.stdout.readline() == b"holds\n"
        assert stop(tmp_path, keep=keep) == service.pid
        assert [one.pid for one in found.find_all(tmp_path)] == ([agent.pid] if keep else [])
        agent.kill()


@pytest.mark.parametrize("named", ["option", "equals", "environment", "file", "default"])
def test_down_ends_a_service_that_does_not_hold_its_directory_yet(
    tmp_path: Path, named: str
) -> None:
    home, away = tmp_path / ".local/state/plexsvc", tmp_path / "away"
    (tmp_path / "c.toml").write_text('state_dir = "away"\n')
    options, environment, place = {
        "option": (["--detach", "--state-dir", "away"], {}, away),
        "equals": ([f"--state-dir={away}"], {}, away),
        "environment": (["--config", "c.toml"], {"PLEX_STATE_DIR": str(home)}, home),
        "file": (["--config", "c.toml"], {}, away),
        "default": (["--root", "."], {}, home),
    }[named]
    sleeps = "import time; print('starts', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", sleeps, "plexsvc.cli.main", "up", *options]
    environment = {"HOME": str(tmp_path), **environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"starts\n"
        assert stop(tmp_path / "elsewhere") is None
        assert stop(place) == service.pid
        assert service.wait() == -signal.SIGTERM


def test_down_leaves_a_standby_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)", "plexctl", "up"]
    options = ["--standby", "--state-dir", str(tmp_path)]
    with subprocess.Popen([*command, *options]) as standby:
        assert stop(tmp_path) is None
        standby.kill()

"""A real Ray cluster, on this host or over several: a head, and nodes that come and go."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest

from tests.rigs import light_nodes
from tests.rigs.network_hosts import NetworkHost
from tests.rigs.processes import command_of, descendants
from tests.rigs.waiting import wait_until

PYTHON: Final = Path(sys.prefix) / "ray" / "bin" / "python"
"""The Python that has Ray (`make test`)."""
_START_S: Final = 40
"""How long a node may take to run; on a busy machine Ray gives some up after 15 s."""
_STARTS: Final = 3
START: Final = Path(__file__).parents[2] / "deploy" / "ray" / "start"


class RayCluster:
    """Use as a context manager: a head without a pool runs inside, and nodes that were added.

    Attributes:
        address: the head's.
    """

    def __init__(self, hosts: Mapping[str, NetworkHost] | None = None) -> None:
        """Start each node, the `head` too, on the host of its name; without `hosts` on this one."""
        self._hosts = hosts or {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._directory = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = pytest.MonkeyPatch()
        self.address = ""

    def __enter__(self) -> Self:
        assert PYTHON.exists(), f"no {PYTHON}: `make test` installs Ray there"
        settings = {
            "RAY": str(PYTHON.with_name("ray")),
            "RAY_AUTH_MODE": "token",
            "RAY_raylet_start_wait_time_s": str(_START_S),
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_gcs_storage_path": str(self._directory / "gcs"),
        }
        for name, value in settings.items():
            self._environment.setenv(name, value)
        self.start_head()
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._started)):
            self.kill(name)
        self._environment.undo()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def nodes_directory(self) -> Path:
        """Where the agents have their files."""
        return self._directory / "nodes"

    def start_head(self) -> None:
        """Start the head; return when it runs."""
        options = ["--head", "--port", str(self._port), "--num-cpus", "0"]
        if "head" in self._hosts:  # without a way out of its network Ray finds no address
            options += ["--node-ip-address", self._hosts["head"].address]
        self._start("head", *options)
        shown = self._log("head").read_text()
        host = shown.partition("Local node IP: ")[2].split()[0]
        self.address = f"{host}:{self._port}"

    def add(self, node: str, *, pool: str, name: str = "", is_light: bool = False) -> None:
        """Start one more node, with another name for us if given; return when it runs.

        On a light one nothing can train or sample (`light_nodes`).
        """
        labels = f"plex-pool={pool},plex-node={name or node}"
        options = ("--address", self.address, "--num-cpus", "1", "--labels", labels)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in light_nodes.environment(self._directory).items():
                if is_light:
                    patch.setenv(variable, value)
            self._start(node, *options)

    def notify(self, name: str) -> None:
        """Tell a node that it has to go, as a cloud does before it takes a host away."""
        self._started[name].send_signal(signal.SIGTERM)

    def raylet(self, name: str) -> int:
        """Return the process of Ray on a node."""
        return self._below(name, "raylet/raylet")

    def restart_head(self) -> None:
        """Kill the head, and start it again at its address."""
        self.kill("head")
        self.start_head()

    def kill(self, name: str) -> None:
        """Kill all of a node at once."""
        process = self._started.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=20)

    def _below(self, name: str, program: str) -> int:
        processes = descendants(self._started[name].pid)
        return next(pid for pid in processes if command_of(pid)[0].endswith(program))

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _start(self, name: str, *options: str) -> None:
        ray = [str(START), *options]
        if name in self._hosts:
            ray = [*self._hosts[name].command(*ray)]
        if name == "head":
            ray += ["--include-dashboard", "false", "--temp-dir", str(self._directory)]
        for _ in range(_STARTS):
            if self._runs(name, ray):
                return
        raise AssertionError(self._log(name).read_text())

    def _runs(self, name: str, command: list[str]) -> bool:
        """Start a node; return whether it runs, as soon as it does."""
        log = self._log(name)
        if name == "head":  # Ray would take other nodes for it
            (self._directory / "ray_current_cluster").unlink(missing_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        self._started[name] = process
        wait_until(
            lambda: "Ray runtime started" in log.read_text() or process.poll() is not None,
            what=f"Ray node {name} runs",
            timeout_s=3 * _START_S,
        )
        return process.poll() is None

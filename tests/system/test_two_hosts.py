"""A cluster over two hosts that share no network but a wire: network namespaces stand for them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from plexsvc.cluster.places import Card, keys_file, read_card
from tests.rigs.live_cluster import MIB, ROLLOUT, ROOT, SHARES_ALL, TRAIN, state_beside
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

LEFT, RIGHT = "10.211.7.1", "10.211.7.2"
PORT = 50061


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def may_make_hosts() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"plex-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return False
    run("ip", "netns", "del", probe)
    return True


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them."""
    if not may_make_hosts():
        pytest.skip("network namespaces are not permitted here: NOT RUN")
    left, right = (f"plex-{side}-{os.getpid()}" for side in ("l", "r"))
    with ExitStack() as stack:
        for name in (left, right):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
        run("ip", "link", "add", "v0", "netns", left, "type", "veth", "peer", "v0", "netns", right)
        for name, address in ((left, LEFT), (right, RIGHT)):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "v0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "v0", "up")
        yield left, right


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """A cluster of a node on each host, and its card."""

    left: str
    right: str
    card: Card

    def on_left(self, *arguments: str) -> str:
        """Run a Python on the left host and return what it prints."""
        done = subprocess.run(
            [*at(self.left), *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def at(host: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", host, sys.executable)


def start(stack: ExitStack, host: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen([*at(host), *arguments], stdout=output, stderr=output)
    stack.callback(process.wait, 30)
    stack.callback(process.send_signal, signal.SIGTERM)
    return process


@pytest.fixture(scope="module")
def cluster(hosts: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    place = tmp_path_factory.mktemp("hosts")
    state = state_beside(place)
    (place / "cluster.toml").write_text(
        f'state_dir = "{state}"\nlisten = "{LEFT}:0"\n'
        f'[[nodes]]\nnode_id = "left"\naddress = "{LEFT}"\nhost_bytes = {2048 * MIB}\n'
        f"staging_bytes = {256 * MIB}\ndevices = [{TRAIN}, {ROLLOUT}]\n{SHARES_ALL}"
        f'\n[router.roots]\ndefault = ["{ROOT}"]\n'
    )
    with ExitStack() as stack:
        left, right = hosts
        config = str(place / "cluster.toml")
        log = place / "up.log"
        up = start(stack, left, "-m", "plexsvc.cli.main", "up", "--config", config, log=log)
        wait_until(
            lambda: read_card(state) is not None or up.poll() is not None,
            what="the cluster is up",
            timeout_s=120,
        )
        card = read_card(state)
        assert card is not None, log.read_text()
        (place / "keys.json").write_bytes(keys_file(state).read_bytes())  # as an operator copies it
        (place / "keys.json").chmod(0o600)
        (place / "right.toml").write_text(
            f'node_id = "right"\nruntime_dir = "{place}/right"\nlisten = "{RIGHT}:{PORT}"\n'
            f'keys_file = "{place}/keys.json"\nhost_bytes = {2048 * MIB}\n'
            f"staging_bytes = {256 * MIB}\ndevices = [{TRAIN}]\n"
        )
        (place / "right").mkdir(mode=0o700)
        config = str(place / "right.toml")
        log = place / "right.log"
        start(stack, right, "-m", "plexsvc.node.agent", "--config", config, log=log)
        wait_until(lambda: "address" in log.read_text(), what="the agent serves", timeout_s=120)
        found = TwoHosts(left, right, card)
        arguments = ("--state-dir", str(state), "--json")
        found.on_left("-m", "plexsvc.cli.main", "node", "add", f"{RIGHT}:{PORT}", *arguments)
        yield found


def test_a_group_over_two_hosts_trains_and_delivers_like_one_rank(
    cluster: TwoHosts, tiny_model: Path
) -> None:
    card = cluster.card
    job = ("-m", "tests.rigs.spread_job", card.address, card.token, str(tiny_model))
    found = json.loads(cluster.on_left(*job).splitlines()[-1])
    assert found["nodes"] == ["left", "right"]
    assert found["forward"] <= 2e-4
    assert found["sampled"] <= 1e-3


def test_every_port_of_a_host_is_on_its_own_address(cluster: TwoHosts) -> None:
    for host, address in ((cluster.left, LEFT), (cluster.right, RIGHT)):
        listening = subprocess.run(
            ["ip", "netns", "exec", host, "ss", "-ltnH"], capture_output=True, text=True, check=True
        )
        shown = [line.split()[3].rpartition(":")[0] for line in listening.stdout.splitlines()]
        found = {one.removeprefix("[::ffff:").removesuffix("]") for one in shown}
        assert found <= {address, "127.0.0.1"}, listening.stdout
        assert address in found

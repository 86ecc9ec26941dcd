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
from typing import Any

import pytest

from plexsvc.cluster.places import Card, read_card
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
    state: Path
    place: Path

    def on_left(self, *arguments: str) -> str:
        """Run a Python on the left host and return what it prints."""
        done = subprocess.run(
            [*at(self.left), *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plexctl(self, *arguments: str) -> Any:
        """Run an operator's command on the left host and return what it prints."""
        state = ("--state-dir", str(self.state))
        return json.loads(self.on_left("-m", "plexsvc.cli.main", *arguments, *state, "--json"))

    def joining(self, token: str, *, name: str = "right") -> tuple[str, ...]:
        """Return a command of the right host that joins."""
        where = ("--listen", f"{RIGHT}:{PORT}", "--directory", str(self.place / "j"))
        options = ("--name", name, "--pool", str(self.place / "pool.toml"), "--json")
        given = ("env", f"PLEX_TOKEN={token}", sys.executable, "-m", "plexsvc.cli.main")
        join = ("node", "join", self.card.address)
        return ("ip", "netns", "exec", self.right, *given, *join, *where, *options)

    def join(self, stack: ExitStack, token: str, *, log: Path) -> Any:
        """Have the right host join, until the stack ends; return what it says when it serves."""
        with log.open("wb") as errors:
            process = subprocess.Popen(self.joining(token), stdout=subprocess.PIPE, stderr=errors)
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        assert process.stdout is not None
        line = stack.enter_context(process.stdout).readline()
        assert line, log.read_text()
        return json.loads(line)

    def refused_join(self, token: str, *, name: str = "other") -> str:
        """Return why the right host may not join."""
        done = subprocess.run(
            self.joining(token, name=name), capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (1, ""), done
        assert not (self.place / "j" / name / "keys.json").exists() or name == "right"
        return str(json.loads(done.stderr)["error"]["message"])

    @property
    def left_address(self) -> dict[str, str]:
        nodes = self.plexctl("status")["nodes"]
        return next(dict(one["address"]) for one in nodes if one["node_id"] == "left")

    def ask_as_right(self, service: str, address: str) -> dict[str, tuple[str, str]]:
        """Return what the right host is refused with at a port, with its keys and with others."""
        keys = str(self.place / "j" / "right" / "keys.json")
        done = subprocess.run(
            [*at(self.right), "-c", PORTS, keys, service, address],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def nodes(self) -> dict[str, str]:
        return {one["node_id"]: one["state"] for one in self.plexctl("node", "list")["nodes"]}


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
        (place / "pool.toml").write_text(
            f"host_bytes = {2048 * MIB}\nstaging_bytes = {256 * MIB}\ndevices = [{TRAIN}]\n"
        )
        found = TwoHosts(left, right, card, state, place)
        made = found.plexctl("node", "token", "create", "--name", "right")
        (place / "used").write_text(made["secret"])
        joined = found.join(stack, made["secret"], log=place / "right.log")
        assert joined == {"node_id": "right", "address": f"{RIGHT}:{PORT}"}
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


def test_every_wrong_token_is_refused_by_name_and_without_effect(cluster: TwoHosts) -> None:
    before = cluster.nodes()
    tokens = {one["name"]: one for one in cluster.plexctl("node", "token", "list")["tokens"]}
    assert tokens["right"]["used_by"] == "right"
    used = (cluster.place / "used").read_text()
    gone, brief = (
        cluster.plexctl("node", "token", "create", *o) for o in ((), ("--expires", "1s"))
    )
    cluster.plexctl("node", "token", "revoke", gone["token"]["token_id"])
    for_other = cluster.plexctl("node", "token", "create", "--name", "third")
    tenants = cluster.plexctl("token", "create", "lab", "--scope", "admin")
    wait_until(lambda: "expired" in cluster.refused_join(brief["secret"]), what="it expired")
    for token, why in (
        (used, "was used by node 'right'"),
        (gone["secret"], "was revoked"),
        (for_other["secret"], "is for node 'third'"),
        (tenants["secret"], "lets in no node"),
        ("tok-0.none.none", "does not know"),
    ):
        assert why in cluster.refused_join(token), token
    assert cluster.nodes() == before == {"left": "up", "right": "up"}
    asked = "-m", "plexsvc.cli.main", "job", "list", "--address", cluster.card.address
    done = subprocess.run(
        [*at(cluster.left), *asked, "--token", for_other["secret"]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "lets in a node" in done.stderr) == (1, True), done


PORTS = """
import asyncio, json, sys
from dataclasses import replace
from pathlib import Path
from plexsvc.errors import PlexError
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import read_keys
from tests.rigs.keys import FOREIGN, member
from tests.rigs.strangers import SERVICES, refusal

async def main(path, service, address):
    found, mine = {}, read_keys(Path(path))
    foreign = replace(member("right", of=FOREIGN), authority=mine.root)
    stale = replace(FOREIGN, authority=mine.root)
    for who, keys in (("none", None), ("foreign", foreign), ("other", stale), ("mine", mine)):
        methods = SERVICES[service].methods if who == "mine" else SERVICES[service].methods[:1]
        async with open_channel(address, keys) as channel:
            for method in methods:
                error = await refusal(channel, SERVICES[service], method, ())
                found[f"{who} {method.name}"] = [str(error.code), error.message]
    print(json.dumps(found))

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_node_calls_no_other_node_but_its_state_manager(cluster: TwoHosts) -> None:
    found = cluster.ask_as_right("Node", cluster.left_address["agent"])
    mine = {what: said for what, said in found.items() if what.startswith("mine")}
    assert {code for code, _ in mine.values()} == {"forbidden"}, mine
    assert {code for what, (code, _) in found.items() if what not in mine} == {"unavailable"}


def test_a_node_that_is_shut_out_reaches_no_port_and_cannot_return(cluster: TwoHosts) -> None:
    left = cluster.left_address
    out = cluster.plexctl("node", "shut-out", "right")
    assert len(out["serials"]) == 1
    for service, address in (("Node", left["agent"]), ("StateManager", left["state_manager"])):
        for what, (code, message) in cluster.ask_as_right(service, address).items():
            assert (code, "was shut out" in message) == (
                ("unauthenticated", True) if what.startswith("mine") else ("unavailable", False)
            ), (service, what, message)
    wait_until(lambda: cluster.nodes() == {"left": "up"}, what="it is forgotten", timeout_s=60)
    assert "was used by" in cluster.refused_join((cluster.place / "used").read_text())
    fresh = cluster.plexctl("node", "token", "create")["secret"]
    assert "was shut out" in cluster.refused_join(fresh, name="right")
    add = ("node", "add", f"{RIGHT}:{PORT}", "--state-dir", str(cluster.state))
    done = subprocess.run(
        [*at(cluster.left), "-m", "plexsvc.cli.main", *add],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "was shut out" in done.stderr) == (1, True), done
    assert cluster.nodes() == {"left": "up"}

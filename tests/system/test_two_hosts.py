"""A cluster over two hosts that share no network but a wire: network namespaces stand for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.live_cluster import ROLLOUT, TRAIN
from tests.rigs.network_hosts import HostCluster, network_hosts, run
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]


class TwoHosts(HostCluster):
    """A cluster of a node on each of two hosts."""

    def refused_join(self, token: str, *, name: str = "other") -> str:
        """Return why the right host may not join."""
        done = subprocess.run(
            self.joining(self.hosts[1], name=name, token=token),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
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
            self.hosts[1].python("-c", PORTS, keys, service, address),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    place = tmp_path_factory.mktemp("hosts")
    with (
        network_hosts(2) as hosts,
        TwoHosts(place, hosts, ["left", "right"], devices=[TRAIN, ROLLOUT]) as found,
    ):
        secret = found.plexctl("node", "token", "create", "--name", "right")["secret"]
        (place / "used").write_text(secret)
        found.join("right", token=secret)
        yield found


def test_a_group_over_two_hosts_trains_and_delivers_like_one_rank(
    cluster: TwoHosts, tiny_model: Path
) -> None:
    card = cluster.card
    job = ("-m", "tests.rigs.spread_job", card.address, card.token, str(tiny_model))
    found = json.loads(cluster.on_head(*job).splitlines()[-1])
    assert found["nodes"] == ["left", "right"]
    assert found["forward"] <= 2e-4
    assert found["sampled"] <= 1e-3


def test_every_port_of_a_host_is_on_its_own_address(cluster: TwoHosts) -> None:
    for host in cluster.hosts:
        listening = run(*host.command("ss", "-ltnH"))
        shown = [line.split()[3].rpartition(":")[0] for line in listening.splitlines()]
        found = {one.removeprefix("[::ffff:").removesuffix("]") for one in shown}
        assert found <= {host.address, "127.0.0.1"}, listening
        assert host.address in found


def test_a_doctor_finds_a_fault_of_each_host(cluster: TwoHosts) -> None:
    said = cluster.plexctl("doctor", "--cluster")["findings"]
    assert {one["name"] for one in said if one["grade"] != "failed"} == {"left", "right"}, said
    command = ("doctor", "--cluster", "--json", "--state-dir", str(cluster.state))
    asked = cluster.hosts[0].python("-m", "plexsvc.cli.main", *command)
    cluster.hosts[1].cut()
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    finally:
        cluster.hosts[1].mend()
    found = {one["name"]: one["found"] for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert "does not reach" in found["left"]
    assert "does not answer" in found["right"]
    wait_until(lambda: cluster.nodes() == {"left": "up", "right": "up"}, what="it is back")


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
        cluster.hosts[0].python(*asked, "--token", for_other["secret"]),
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
    wait_until(lambda: cluster.nodes() == {"left": "up"}, what="it is forgotten")
    assert "was used by" in cluster.refused_join((cluster.place / "used").read_text())
    fresh = cluster.plexctl("node", "token", "create")["secret"]
    assert "was shut out" in cluster.refused_join(fresh, name="right")
    right = (cluster.place / "j" / "right" / "address").read_text()
    add = ("node", "add", right, "--state-dir", str(cluster.state))
    done = subprocess.run(
        cluster.hosts[0].python("-m", "plexsvc.cli.main", *add),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "was shut out" in done.stderr) == (1, True), done
    assert cluster.nodes() == {"left": "up"}

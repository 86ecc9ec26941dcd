"""Hosts that share no network but a bridge, and a cluster over them: namespaces stand for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import plexclient as plex
from plexsvc.cluster.places import Card, read_card
from tests.rigs.live_cluster import MIB, ROOT, SHARES_ALL, TRAIN, LiveCluster, state_beside
from tests.rigs.processes import is_alive, name_of, running
from tests.rigs.waiting import wait_until

_PORT: Final = 50061
_NEEDS: Final = "hosts are network namespaces, which take root and iproute2 (`ip`, `tc`, veth)"


def run(*command: str) -> str:
    """Return what a command prints.

    Raises:
        AssertionError: with what it says when it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}; {_NEEDS}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class NetworkHost:
    """A host.

    Attributes:
        address: by which the others, and this process, reach it.
    """

    namespace: str
    address: str
    link: str
    """Its end on the bridge."""

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Return a command that runs there."""
        return ("ip", "netns", "exec", self.namespace, *arguments)

    def python(self, *arguments: str) -> tuple[str, ...]:
        """Return the command of a Python that runs there."""
        return self.command(sys.executable, *arguments)

    def pids(self) -> list[int]:
        """Return its living processes."""
        return [
            pid
            for pid in map(int, run("ip", "netns", "pids", self.namespace).split())
            if is_alive(pid)
        ]

    def cut(self) -> None:
        """Isolate it: what others send it is lost in silence, and what it sends, too."""
        self._queue("add", "tbf", "rate", "8bit", "burst", "1", "limit", "1")  # no packet fits

    def mend(self) -> None:
        """End its isolation."""
        self._queue("del")

    def _queue(self, verb: str, *shape: str) -> None:
        """Have both ends of its line shaped, or no more."""
        run("tc", "-n", self.namespace, "qdisc", verb, "dev", "eth0", "root", *shape)
        run("tc", "qdisc", verb, "dev", self.link, "root", *shape)


@contextmanager
def network_hosts(count: int) -> Iterator[tuple[NetworkHost, ...]]:
    """Make hosts on a bridge that this process reaches, too; they go at the end.

    Raises:
        AssertionError: where they cannot be made, and why.
    """
    assert os.geteuid() == 0 and shutil.which("ip"), _NEEDS  # noqa: PT018 - one need
    own = os.getpid()
    net, bridge = f"10.{200 + own // 250 % 50}.{own % 250}", f"plex{own}"
    with ExitStack() as stack:
        run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(run, "ip", "link", "del", bridge)
        run("ip", "addr", "add", f"{net}.254/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        hosts = []
        for number in range(1, count + 1):
            host = NetworkHost(f"{bridge}-{number}", f"{net}.{number}", f"pv{own}-{number}")
            run("ip", "netns", "add", host.namespace)
            stack.callback(run, "ip", "netns", "del", host.namespace)
            peer = ("peer", "name", "eth0", "netns", host.namespace)
            run("ip", "link", "add", host.link, "type", "veth", *peer)
            run("ip", "link", "set", host.link, "master", bridge, "up")
            inside = ("ip", "-n", host.namespace)
            run(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "link", "set", "eth0", "up")
            hosts.append(host)
        yield tuple(hosts)


@dataclass(slots=True)
class HostCluster:
    """A service on the first host; it has a node there, and each other host may join. A context.

    Attributes:
        joined: what joined each host, by the name of its node.
    """

    place: Path
    hosts: Sequence[NetworkHost]
    names: Sequence[str]
    """Of their nodes."""
    devices: Sequence[str] = (TRAIN,)
    """Of the first host."""
    launcher: str = ""
    """Keys of what makes hosts nodes; then none has joined, and the first is none."""
    scheduler: str = SHARES_ALL
    """The table of that name."""
    joined: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _up: subprocess.Popen[bytes] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        size = f"host_bytes = {2048 * MIB}\nstaging_bytes = {256 * MIB}\n"
        address = self.hosts[0].address
        first = (
            f'[[nodes]]\nnode_id = "{self.names[0]}"\naddress = "{address}"\n{size}'
            f"devices = [{', '.join(self.devices)}]\n"
        )
        (self.place / "cluster.toml").write_text(
            f'state_dir = "{self.state}"\nlisten = "{address}:{_PORT - 1}"\n'
            f'{self.launcher or first}{self.scheduler}\n[router.roots]\ndefault = ["{ROOT}"]\n'
        )
        patient = "orphan_us = 600_000_000\n"  # a busy machine may leave a host cut off for long
        (self.place / "pool.toml").write_text(f"{size}{patient}devices = [{TRAIN}]\n")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._up is not None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(120)

    @property
    def state(self) -> Path:
        """The service's state directory."""
        return state_beside(self.place)

    @property
    def card(self) -> Card:
        """Where the service is."""
        card = read_card(self.state)
        assert card is not None, (self.place / "up.log").read_text()
        return card

    def start(self) -> None:
        """Start the service; return when it serves."""
        command = ("-m", "plexsvc.cli.main", "up", "--config", str(self.place / "cluster.toml"))
        with (self.place / "up.log").open("ab") as log:
            up = subprocess.Popen(self.hosts[0].python(*command), stdout=log, stderr=log)
        self._up = up
        wait_until(
            lambda: (
                ((card := read_card(self.state)) and card.pid == up.pid) or up.poll() is not None
            ),
            what="the cluster is up",
        )
        assert up.poll() is None, (self.place / "up.log").read_text()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The service."""
        assert self._up is not None
        return self._up

    def kill(self) -> None:
        """Kill the service with SIGKILL, and it alone."""
        assert self._up is not None
        self._up.kill()
        self._up.wait(120)

    def on_head(self, *arguments: str) -> str:
        """Run a Python on the first host and return what it prints."""
        done = subprocess.run(
            self.hosts[0].python(*arguments),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plexctl(self, *arguments: str) -> Any:
        """Run an operator's command on the first host and return what it prints."""
        state = ("--state-dir", str(self.state))
        return json.loads(self.on_head("-m", "plexsvc.cli.main", *arguments, *state, "--json"))

    @property
    def live(self) -> LiveCluster:
        """How this process reaches it."""
        card = self.card
        return LiveCluster(
            address=card.address,
            token=card.token,
            state_dir=self.state,
            pid=card.pid,
            scheduler=card.scheduler,
        )

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        return {node.node_id: node.state for node in self.live.nodes()}

    def homes(self, job: plex.Job) -> list[str]:
        """Return the nodes where a job's deployments live."""
        nodes = self.live.nodes()
        return [n.node_id for n in nodes if job.job_id in {one.job_id for one in n.residents}]

    def host(self, name: str) -> NetworkHost:
        """Return the host of a node."""
        return self.hosts[self.names.index(name)]

    def wait_for_copies(self, job: plex.Job) -> None:
        """Return when each of a job's durable deployments has a second copy of its last step."""

        def has_copies() -> bool:
            said = self.live.explain(job.job_id)
            found = re.findall(r"after seq (\d+) .* if its node is lost, after seq (\d+)", said)
            return bool(found) and all(first == second for first, second in found)

        wait_until(has_copies, what=f"{job.job_id} has second copies")

    def joining(self, host: NetworkHost, *, name: str, token: str = "") -> tuple[str, ...]:
        """Return the command by which a host joins; without a token it joined before."""
        where = ("--listen", f"{host.address}:{_PORT}", "--directory", str(self.place / "j"))
        options = ("--name", name, "--pool", str(self.place / "pool.toml"), "--json")
        join = ("-m", "plexsvc.cli.main", "node", "join", self.card.address)
        given = (f"PLEX_TOKEN={token}",) if token else ()
        return host.command("env", *given, sys.executable, *join, *where, *options)

    def join(self, name: str, *, token: str = "") -> None:
        """Have a host join, again if it joined before, until this block ends."""
        if not token and name not in self.joined:
            token = self.plexctl("node", "token", "create")["secret"]
        log = self.place / f"{name}.log"
        with log.open("ab") as errors:
            command = self.joining(self.host(name), name=name, token=token)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        self.joined[name] = process
        self._stack.callback(process.wait, 120)
        self._stack.callback(process.terminate)
        assert process.stdout is not None
        line = self._stack.enter_context(process.stdout).readline()
        assert line, log.read_text()
        assert json.loads(line)["node_id"] == name

    def agent(self, name: str) -> int:
        """Return the process of the agent of a host that joined."""
        return running("plexsvc.node.agent", below=self.joined[name].pid)[0]

    def ranks(self, name: str) -> list[int]:
        """Return the processes on a host that hold parts of models."""
        return [pid for pid in self.host(name).pids() if "wpg" in name_of(pid)]

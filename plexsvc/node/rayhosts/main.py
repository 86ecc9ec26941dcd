"""Keeper of an agent on each Ray node: the only program that imports Ray.

`python -P main.py SETTINGS` reads a JSON file (`RayLauncher` writes it) and prints a JSON line with
all hosts whenever one is another. TERM ends the agents; KILL leaves them to the next keeper.

It runs with Ray's Python, so it imports nothing of plexsvc. What runs on a Ray node is an actor of
`NodeHost`, sent there by value: that Python needs nothing of plexsvc either.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

PERIOD_S: Final = 0.25
"""How often Ray is asked for its nodes."""
SETTLED_S: Final = 1.0
"""How often an agent that serves is looked at."""
END_S: Final = 15.0
"""How long all agents together may take to end."""
MAX_SKEW_S: Final = 60.0
"""How far the clock of a host may be off the service's; it gets no agent else."""
NAMESPACE: Final = "plexsvc"
POOL: Final = "plex-pool"
"""The label of Ray nodes that are to have an agent: the name of their pool."""
NAME: Final = "plex-node"
"""The label with the node's name; by default its `--node-name`, or else its host's."""


class NodeHost:
    """On one Ray node: runs the agent as a child that dies with this process.

    The child is forked from the actor's main thread, on which Ray calls it: the kernel ties it to
    that thread.
    """

    def __init__(self) -> None:
        self._order: dict[str, str] = {}
        self._agent: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._began_s = 0.0
        self._pause_s = 1.0
        self._problem = ""

    def keep(self, order: dict[str, str], now_s: float) -> dict[str, Any]:
        """Have an agent run as ordered; return where it serves, or why it does not yet.

        `now_s` is the time on the service's host when it was ordered.
        """
        cluster = self._order.get("cluster", order["cluster"])
        if cluster != order["cluster"]:
            return {"problem": f"cluster {cluster} has this node; stop it, or use another pool"}
        skew_s = time.time() - now_s  # noqa: TID251 - plexsvc's clock is not here
        if self._agent is None and abs(skew_s) > MAX_SKEW_S:
            return {"problem": f"its clock is {skew_s:.0f} s off the service's; set it (chrony)"}
        self._directory_of(order).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not order["certificate"] or not (self._directory_of(order) / "key.pem").exists():
            return self._asks(order)
        if order != self._order and self._agent is not None:
            self.end()
        self._order = order
        if self._agent is None:
            self._start()
        elif self._agent.poll() is not None:
            self._replace()
        said = self._said()
        if said is not None and self._agent is not None:
            self._address = said
            problem = _priority()
            return {"address": said, "pid": self._agent.pid, "problem": problem}
        return {"problem": self._problem}

    def end(self) -> None:
        """End the agent, and with it all that its node runs; return when it is gone."""
        agent, self._agent, self._address = self._agent, None, ""
        if agent is None:
            return
        agent.terminate()
        try:
            agent.wait(10)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait(5)

    def _asks(self, order: dict[str, str]) -> dict[str, Any]:
        """Return what asks for a certificate of the key pair that is made here, and stays here."""
        done = subprocess.run(
            (*self._module(order), "--request"),
            env=_environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return {"problem": f"it makes no key pair: {done.stderr.strip()[-2000:]}"}
        return {"request": done.stdout}

    @property
    def _directory(self) -> Path:
        return self._directory_of(self._order)

    @staticmethod
    def _directory_of(order: dict[str, str]) -> Path:
        return Path(order["directory"]) / order["node_id"]

    def _module(self, order: dict[str, str]) -> tuple[str, ...]:
        """Return the program that makes this host a node, with its file written."""
        listen = self._address or f"{order['host']}:0"
        config = self._directory_of(order) / "join.toml"
        config.write_text(
            f"node_id = {json.dumps(order['node_id'])}\nlisten = {json.dumps(listen)}\n"
            f"is_replacement = {json.dumps(bool(self._address))}\n"
            f"certificate = {json.dumps(order['certificate'])}\n"
            f"directory = {json.dumps(order['directory'])}\n{order['settings']}"
        )
        return (order["python"], "-m", "plexsvc.node.join", "--config", str(config))

    def _start(self) -> None:
        directory = self._directory
        self._began_s = time.monotonic()
        module = self._module(self._order)
        with (directory / "said").open("wb") as said, (directory / "agent.log").open("ab") as log:
            self._log_begins = log.tell()
            self._agent = subprocess.Popen(
                (*module, "--parent-death", str(os.getpid())),
                env=_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                start_new_session=True,
            )

    def _replace(self) -> None:
        """Start the agent again, after a pause that grows while it does not live long."""
        assert self._agent is not None
        log = (self._directory / "agent.log").read_bytes()[self._log_begins :]
        words = log[-2000:].decode(errors="replace").strip()
        self._problem = f"its agent ended with {self._agent.returncode}: {words}"
        (self._directory / "said").write_bytes(b"")
        lived_s = time.monotonic() - self._began_s
        if lived_s > 60:
            self._pause_s = 1.0
        elif lived_s < self._pause_s:
            return
        else:
            self._pause_s = min(2 * self._pause_s, 60)
        self._start()

    def _said(self) -> str | None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(json.loads((self._directory / "said").read_text())["address"])
        return None


def _environment() -> dict[str, str]:
    """Return the environment in which Ray was started on this node, without Ray's own part.

    Ray hides GPUs from an actor without any, and lets it use one thread.
    """
    text = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="surrogateescape")
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    kept = {name: value for name, _, value in pairs if not name.startswith("RAY_")}
    kept.pop("LD_PRELOAD", None)
    return kept


def _priority() -> str:
    """Say what Ray's defaults do to what runs here; a process cannot take that back."""
    score = int(Path("/proc/self/oom_score_adj").read_text())
    if os.nice(0) <= 0 and score <= 0:
        return ""
    return (
        f"runs at niceness {os.nice(0)} and oom_score_adj {score}; start Ray there with "
        "RAY_worker_niceness=0 and RAY_worker_oom_score_adjustment=0"
    )


def leaving() -> set[str]:
    """Return the Ray nodes that have been told to go. Ray shows them in no public call."""
    import ray._private.state

    return set(ray._private.state.state.get_draining_nodes())  # noqa: SLF001


class Keeper:
    """Compares Ray's nodes with agents, and tells of them."""

    def __init__(self, settings: dict[str, Any], *, tells: TextIO) -> None:
        """Keep agents by `settings`; tell of them in lines of `tells`."""
        import ray

        self._ray = ray
        self._tells = tells
        self._settings = settings
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._due_s: dict[str, float] = {}
        self._named: dict[str, str] = {}
        self._told: list[dict[str, Any]] | None = None
        self.ends = False

    def run(self) -> None:
        """Keep agents until `ends`; then end them."""
        while not self.ends:
            nodes = [node for node in self._ray.nodes() if POOL in node["Labels"]]
            alive = {node["NodeID"]: node for node in nodes if node["Alive"]}
            self._name(alive)
            for ray_id in [ray_id for ray_id in self._actors if ray_id not in alive]:
                self._drop(ray_id)
            for name, ray_id in self._named.items():
                self._ask(alive[ray_id], name)
            self._tell(nodes, alive)
            self._listen()
        self._end()

    def _name(self, alive: dict[str, dict[str, Any]]) -> None:
        """Give each name to the first node that has it, for as long as that lives."""
        self._named = {name: key for name, key in self._named.items() if key in alive}
        for ray_id, node in alive.items():
            self._named.setdefault(name_of(node), ray_id)

    def _ask(self, node: dict[str, Any], name: str) -> None:
        ray_id, pools = node["NodeID"], self._settings["pools"]
        pool = node["Labels"][POOL]
        if pool not in pools:
            known = ", ".join(pools)
            self._answers[ray_id] = {"problem": f"its pool {pool!r} is none of ray.pools: {known}"}
            return
        if ray_id in self._asked or time.monotonic() < self._due_s.get(ray_id, 0.0):
            return
        if ray_id not in self._actors:
            self._actors[ray_id] = self._host_on(ray_id)
        order = {
            "cluster": self._settings["cluster"],
            "node_id": name,
            "host": node["NodeManagerAddress"],
            "directory": self._settings["directory"],
            "python": self._settings["python"],
            "settings": pools[pool],
            "certificate": self._certificate_of(name),
        }
        now_s = time.time()  # noqa: TID251 - plexsvc's clock is not here
        self._asked[ray_id] = self._actors[ray_id].keep.remote(order, now_s)

    def _certificate_of(self, name: str) -> str:
        path = Path(self._settings["certificates"]) / name
        return path.read_text() if path.exists() else ""

    def _host_on(self, ray_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(NodeHost)
            .options(
                name=f"node-host/{ray_id}",
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(ray_id, soft=False),
            )
            .remote()
        )

    def _listen(self) -> None:
        """Take what was answered within the period."""
        until_s = time.monotonic() + PERIOD_S
        asked = dict(self._asked)
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=PERIOD_S)
        for ray_id, answer in asked.items():
            ready, _ = self._ray.wait([answer], timeout=0)
            if not ready:
                continue
            del self._asked[ray_id]
            try:
                found = self._answers[ray_id] = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                self._drop(ray_id)
                self._answers[ray_id] = {"problem": f"no NodeHost: {type(error).__name__}"}
                found = {}
            pause_s = SETTLED_S if found.get("address") else PERIOD_S
            self._due_s[ray_id] = time.monotonic() + pause_s
        time.sleep(max(0.0, until_s - time.monotonic()))  # noqa: TID251 - it has no event loop

    def _drop(self, ray_id: str) -> None:
        for known in (self._actors, self._asked, self._answers, self._due_s):
            known.pop(ray_id, None)

    def _tell(self, nodes: list[dict[str, Any]], alive: dict[str, dict[str, Any]]) -> None:
        """Print all hosts if one is another than before."""
        leaves = leaving()
        hosts = [
            {"node_id": name, "is_leaving": ray_id in leaves, **self._answers.get(ray_id, {})}
            for name, ray_id in self._named.items()
        ]
        for host in hosts:
            twins = [n for n in alive.values() if name_of(n) == host["node_id"]]
            for twin in twins:
                if twin["NodeID"] != self._named[host["node_id"]]:
                    host["problem"] = (
                        f"the Ray node at {twin['NodeManagerAddress']} has its name, too, and gets "
                        "no agent; start that with another --node-name"
                    )
        gone = {name_of(node) for node in nodes} - self._named.keys()
        hosts += [{"node_id": name, "is_gone": True} for name in sorted(gone)]
        if hosts != self._told:
            self._told = hosts
            self._tells.write(json.dumps(hosts) + "\n")
            self._tells.flush()

    def _end(self) -> None:
        ended = [actor.end.remote() for actor in self._actors.values()]
        if ended:
            self._ray.wait(ended, num_returns=len(ended), timeout=END_S)
        for actor in self._actors.values():
            self._ray.kill(actor)


def name_of(node: dict[str, Any]) -> str:
    """Return the name of a Ray node in our cluster."""
    labelled = node["Labels"].get(NAME)
    if labelled:
        return str(labelled)
    name = str(node["NodeName"])
    return str(node["NodeManagerHostname"]) if name == node["NodeManagerAddress"] else name


def main() -> None:
    """Keep agents on the Ray nodes as the file named on the command line says."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    tells = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray writes to stdout, too, from C++
    import ray

    ray.init(
        address=settings["address"],
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    keeper = Keeper(settings, tells=tells)
    signal.signal(signal.SIGTERM, lambda *_: setattr(keeper, "ends", True))
    keeper.run()


if __name__ == "__main__":
    main()

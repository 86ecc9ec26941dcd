"""What a campaign of faults does to a cluster: each kind of fault, and the moments when one hits.

A kind is a generator: it hits, and after the yield mends what nothing else does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from plexsvc.cluster.places import keys_file
from plexsvc.node import found
from tests.rigs.chaos_proxy import ChaosProxy
from tests.rigs.chaos_proxy import Faults as Line
from tests.rigs.live_cluster import ROOT, TETHERED, Service, rewards_address
from tests.rigs.postgres import Postgres
from tests.rigs.processes import command_of, running

STALL_S: Final = 1.5
"""For how long what nobody replaces stands still."""


@dataclass(slots=True)
class Cluster:
    """What the jobs run on, and what is done to it."""

    service: Service
    proxy: ChaosProxy
    router: Router
    hands: ThreadPoolExecutor
    """The thread that starts processes: they die with the thread that started them."""
    postgres: Postgres | None = None
    disk: Path | None = None
    """A file that takes all the disk has left."""

    @property
    def agent(self) -> int:
        (agent,) = found.find_all(self.service.live.state_dir)
        return agent.pid

    def below(self, module: str, *, pid: int) -> int:
        """Return the first process that runs a module below another."""
        return running(module, below=pid)[0]

    @property
    def zygote(self) -> int:
        """The process that ranks are forked from: the oldest of that command."""
        pids = running("plexsvc.node.zygote", below=self.agent)
        return next(pid for pid in pids if "plexsvc.worker.preload" in command_of(pid))


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@dataclass(slots=True)
class Router:
    """A router apart at a fixed address."""

    config: Path
    address: str
    process: subprocess.Popen[str] | None = None

    @classmethod
    def before(cls, service: Service, directory: Path) -> Self:
        """Start one before a service."""
        address = free_address()
        config = directory / "router.toml"
        config.write_text(
            f'listen = "{address}"\nscheduler = "{service.live.scheduler}"\n'
            f'keys_file = "{keys_file(service.live.state_dir)}"\n'
            f'reward = "{rewards_address(service.live)}"\n'
            f'[tokens]\n"{service.live.token}" = "default"\n[roots]\ndefault = ["{ROOT}"]\n'
        )
        router = cls(config, address)
        router.start()
        return router

    def start(self) -> None:
        """Start it; return when it listens."""
        command = [*TETHERED, "-m", "plexsvc.router.main", "--config", str(self.config)]
        with self.config.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["address"] == self.address

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; one that is killed is reaped."""
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.communicate()


Victims = dict[str, int]
Hit = Callable[[Cluster, Victims], Iterator[None]]


def service_killed(cluster: Cluster, _: Victims) -> Iterator[None]:
    cluster.service.kill()
    yield
    cluster.service.start()


def service_stopped(cluster: Cluster, _: Victims) -> Iterator[None]:
    process = cluster.service.process
    process.send_signal(signal.SIGSTOP)
    yield
    pause(STALL_S)
    process.send_signal(signal.SIGCONT)


def service_replaced(cluster: Cluster, _: Victims) -> Iterator[None]:
    """Stop the leader; a standby that waits takes over and ends it."""
    leader = cluster.service.process
    cluster.service.stand_by()
    leader.send_signal(signal.SIGSTOP)
    yield
    cluster.service.succeed()
    assert leader.wait(timeout=20) == -signal.SIGKILL


def standby(number: signal.Signals) -> Hit:
    """Return the fault of a standby: nobody misses it."""

    def hits(cluster: Cluster, _: Victims) -> Iterator[None]:
        waits = cluster.service.stand_by()
        waits.send_signal(number)
        yield
        waits.send_signal(signal.SIGCONT)
        cluster.service.dismiss()

    return hits


def router_killed(cluster: Cluster, _: Victims) -> Iterator[None]:
    cluster.router.send(signal.SIGKILL)
    yield
    cluster.router.start()


def router_stopped(cluster: Cluster, _: Victims) -> Iterator[None]:
    cluster.router.send(signal.SIGSTOP)
    yield
    pause(STALL_S)
    cluster.router.send(signal.SIGCONT)


def agent_stopped(cluster: Cluster, _: Victims) -> Iterator[None]:
    agent = cluster.agent
    os.kill(agent, signal.SIGSTOP)
    yield
    pause(STALL_S)
    os.kill(agent, signal.SIGCONT)


def zygote_killed(cluster: Cluster, _: Victims) -> Iterator[None]:
    os.kill(cluster.zygote, signal.SIGKILL)
    yield


def controller_stopped(_: Cluster, victims: Victims) -> Iterator[None]:
    os.kill(victims["controller"], signal.SIGSTOP)
    yield
    pause(STALL_S)
    os.kill(victims["controller"], signal.SIGCONT)


def hit(name: str, number: signal.Signals) -> Hit:
    """Return the fault of a process that others find out about and replace."""

    def hits(_: Cluster, victims: Victims) -> Iterator[None]:
        os.kill(victims[name], number)
        yield

    return hits


def line(faults: Line) -> Hit:
    """Return the fault of a line that is cut, and behaves badly until it is cut again."""

    def behaves(cluster: Cluster, _: Victims) -> Iterator[None]:
        cluster.proxy.turn(faults)
        yield
        pause(STALL_S)
        cluster.proxy.turn(Line())

    return behaves


def disk_full(cluster: Cluster, _: Victims) -> Iterator[None]:
    assert cluster.disk is not None
    with suppress(OSError), cluster.disk.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    yield
    pause(STALL_S)
    cluster.disk.unlink()


def database_restarted(cluster: Cluster, _: Victims) -> Iterator[None]:
    """End it as a crash: what was not committed is lost."""
    assert cluster.postgres is not None
    cluster.postgres.stop()
    yield
    cluster.postgres.restart()


KINDS: Final[dict[str, Hit]] = {
    "service killed": service_killed,
    "service stopped": service_stopped,
    "service replaced": service_replaced,
    "standby killed": standby(signal.SIGKILL),
    "standby stopped": standby(signal.SIGSTOP),
    "router killed": router_killed,
    "router stopped": router_stopped,
    "agent stopped": agent_stopped,
    "agent killed": hit("agent", signal.SIGKILL),
    "state manager killed": hit("statemanager", signal.SIGKILL),
    "state manager stopped": hit("statemanager", signal.SIGSTOP),
    "rank killed": hit("rank", signal.SIGKILL),
    "rank stopped": hit("rank", signal.SIGSTOP),
    "zygote killed": zygote_killed,
    "manager killed": hit("rollout", signal.SIGKILL),
    "manager stopped": hit("rollout", signal.SIGSTOP),
    "instance killed": hit("instance", signal.SIGKILL),
    "instance stopped": hit("instance", signal.SIGSTOP),
    "rewards killed": hit("reward", signal.SIGKILL),
    "rewards stopped": hit("reward", signal.SIGSTOP),
    "controller killed": hit("controller", signal.SIGKILL),
    "controller stopped": controller_stopped,
    "line cut": line(Line(cut_mean_bytes=4000)),
    "line repeats": line(Line(duplicate_mean_bytes=3000)),
    "line delays": line(Line(delay_share=0.5, delay_max_s=0.3)),
    "disk full": disk_full,
    "database restarted": database_restarted,
}
ONLY_ON: Final = {
    "sqlite": {"disk full"},
    "postgres": {"service replaced", "standby killed", "standby stopped", "database restarted"},
}
"""Kinds that need a database of their own: what waits for a file alone does not say so."""
ENDS: Final = {"agent killed"}
"""Kinds after which the jobs of the only node end, by name: no copy lies elsewhere."""
MOMENTS: Final = (
    *("mid-switch", "mid-pass", "between", "mid-step", "mid-save", "mid-load"),
    *("mid-publish", "mid-generate", "mid-score", "mid-takeover"),
)
"""When a fault hits: `between` is after `forward_backward` and before `step`."""
ON_DEVICE: Final = {"mid-pass", "mid-step", "mid-save", "mid-load", "mid-publish"}
"""When an operation may begin with a switch."""
REBUILT: Final = ("rank", "zygote")
"""What durable deployments outlive where their state can be rebuilt (`docs/recovery.md`)."""
EXCLUDED: Final = {
    *((f"rewards {how}", "mid-takeover") for how in ("killed", "stopped")),
    *((kind, "mid-takeover") for kind in ("service replaced", "standby killed", "standby stopped")),
}
"""The reward proxy is the service's: none lives while it takes over. A standby would lead then."""


def pause(longest_s: float) -> None:
    time.sleep(longest_s)  # noqa: TID251 - real processes stand still for real time


def show(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - to replay and to judge it


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    moment: str


def cells(kinds: Sequence[str]) -> list[Fault]:
    """Return each of these kinds at each moment at which it can hit."""
    return [
        Fault(kind, moment)
        for kind in kinds
        for moment in MOMENTS
        if (kind, moment) not in EXCLUDED
    ]


def table(hits: Mapping[Fault, int]) -> str:
    """Return how often each kind hit at each moment."""
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in hits)]
    lines = [" " * 22 + " ".join(f"{moment:>12}" for moment in MOMENTS)]
    for kind in kinds:
        row = [
            "-" if (kind, moment) in EXCLUDED else str(hits.get(Fault(kind, moment), 0))
            for moment in MOMENTS
        ]
        lines.append(f"{kind:22}" + " ".join(f"{cell:>12}" for cell in row))
    return "\n".join(lines)


def read_hits(path: Path) -> dict[Fault, int]:
    """Return what earlier campaigns hit: a line each of a count, a kind and a moment."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split(",") for line in lines]
    return {Fault(kind, moment): int(count) for count, kind, moment in parts}


def write_hits(path: Path, hits: Mapping[Fault, int]) -> None:
    """Keep what campaigns hit."""
    path.write_text(
        "".join(f"{n},{one.kind},{one.moment}\n" for one, n in sorted(hits.items(), key=str))
    )

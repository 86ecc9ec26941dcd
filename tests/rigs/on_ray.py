"""The real service on the nodes of a real Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.live_cluster import MIB, ROLLOUT, TRAIN, Service
from tests.rigs.network_hosts import HostCluster, NetworkHost
from tests.rigs.processes import descendants, running
from tests.rigs.ray_cluster import PYTHON, RayCluster
from tests.rigs.waiting import wait_until


@dataclass(frozen=True, slots=True)
class OnRay:
    """A service, and the Ray cluster that it runs on."""

    ray: RayCluster
    service: Service | HostCluster
    log: Path

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        return {node.node_id: node.state for node in self.service.live.nodes()}

    def homes(self) -> set[str]:
        """Return the nodes where any deployment lives."""
        return {node.node_id for node in self.service.live.nodes() if node.residents}

    def wait_for(self, name: str, state: str | None) -> None:
        """Return when a node is in a state; None: when it is forgotten."""
        wait_until(lambda: self.nodes().get(name) == state, what=f"{name} is {state}", timeout_s=90)

    @property
    def keeper(self) -> int:
        """The process that speaks with Ray."""
        return running(str(PYTHON), below=self.service.process.pid)[0]

    def wait_for_other_agent(self, name: str, agent: int) -> None:
        """Return when a node is up with another agent than the one given."""
        wait_until(
            lambda: self.nodes().get(name) == "up" and self.agent(name) not in {0, agent},
            what=f"{name} has another agent",
            timeout_s=90,
        )

    def agent(self, name: str) -> int:
        """Return the process of a node's agent, 0 while it has none."""
        return next(iter(running("plexsvc.node.agent", below=self.ray.raylet(name))), 0)

    def host(self, name: str) -> int:
        """Return the process of Ray that holds a node's agent."""
        agent = self.agent(name)
        below = descendants(self.ray.raylet(name))
        return next(pid for pid in below if agent in descendants(pid))


@dataclass(frozen=True, slots=True)
class OnHosts(OnRay):
    """The same over several hosts; the service is on the first."""

    service: HostCluster


_OF_THIS_HOST = f"""#!/bin/sh
# Ray takes any raylet that it finds in /proc for one of this host: hide those of other hosts.
[ -n "$HIDES" ] || HIDES=1 exec unshare --mount "$0" "$@"
for raylet in $(pgrep -x raylet); do
  [ "$(readlink /proc/$raylet/ns/net)" = "$(readlink /proc/self/ns/net)" ] ||
    mount -t tmpfs none /proc/$raylet
done
exec {PYTHON} "$@"
"""


@contextmanager
def start_on_ray(place: Path) -> Iterator[OnRay]:
    """Start both, with one node of pool `both`, called "one"; others are `train` and `sample`."""
    with (
        RayCluster() as ray,
        Service(place, nodes={}, extra=_launcher(ray, python=PYTHON)) as service,
    ):
        cluster = OnRay(ray, service, place / "up.log")
        ray.add("one", pool="both")
        cluster.wait_for("one", "up")
        yield cluster


@contextmanager
def start_on_hosts(
    place: Path, hosts: Sequence[NetworkHost], names: Sequence[str]
) -> Iterator[OnHosts]:
    """Start both on the first host, the `head`; the pools are the same."""
    python = place / "python"
    python.write_text(_OF_THIS_HOST)
    python.chmod(0o755)
    with (
        RayCluster(dict(zip(names, hosts, strict=True))) as ray,
        HostCluster(place, hosts, names, launcher=_launcher(ray, python=python)) as service,
    ):
        yield OnHosts(ray, service, place / "up.log")


def _launcher(ray: RayCluster, *, python: Path) -> str:
    sizes = f"host_bytes = {1024 * MIB}, staging_bytes = {256 * MIB}"
    pool = f"{sizes}, orphan_us = 600_000_000, devices"
    return (
        f'launcher = "ray"\nray.address = "{ray.address}"\nray.python = "{python}"\n'
        f'ray.directory = "{ray.nodes_directory}"\n'
        f"ray.pools.both = {{ {pool} = [{TRAIN}, {ROLLOUT}] }}\n"
        f"ray.pools.train = {{ {pool} = [{TRAIN}] }}\n"
        f"ray.pools.sample = {{ {pool} = [{ROLLOUT}, {ROLLOUT}] }}\n"
    )

"""The real service on the nodes of a real Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.live_cluster import MIB, ROLLOUT, TRAIN, Service
from tests.rigs.processes import descendants, running
from tests.rigs.ray_cluster import PYTHON, RayCluster
from tests.rigs.waiting import wait_until


@dataclass(frozen=True, slots=True)
class OnRay:
    """A service, and the Ray cluster that it runs on."""

    ray: RayCluster
    service: Service
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

    def agent(self, name: str) -> int:
        """Return the process of a node's agent, 0 while it has none."""
        return next(iter(running("plexsvc.node.agent", below=self.ray.raylet(name))), 0)

    def host(self, name: str) -> int:
        """Return the process of Ray that holds a node's agent."""
        agent = self.agent(name)
        below = descendants(self.ray.raylet(name))
        return next(pid for pid in below if agent in descendants(pid))


@contextmanager
def start_on_ray(place: Path) -> Iterator[OnRay]:
    """Start both, with one node of pool `both`, called "one"; the other pool is `train`."""
    with RayCluster() as ray:
        pool = f"host_bytes = {1024 * MIB}, staging_bytes = {256 * MIB}, devices"
        launcher = (
            f'launcher = "ray"\nray.address = "{ray.address}"\nray.python = "{PYTHON}"\n'
            f'ray.directory = "{ray.nodes_directory}"\n'
            f"ray.pools.both = {{ {pool} = [{TRAIN}, {ROLLOUT}] }}\n"
            f"ray.pools.train = {{ {pool} = [{TRAIN}] }}\n"
        )
        with Service(place, nodes={}, extra=launcher) as service:
            cluster = OnRay(ray, service, place / "up.log")
            ray.add("one", pool="both")
            cluster.wait_for("one", "up")
            yield cluster

"""Configuration of an embedded cluster: what `plexctl up --config FILE` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from plexsvc.cluster.places import default_state_dir
from plexsvc.errors import bad_request
from plexsvc.node.config import DeviceConfig, HostShare, check_node
from plexsvc.node.launchers.ray import RayConfig
from plexsvc.reward.config import RewardConfig
from plexsvc.rollout.config import RolloutConfig
from plexsvc.router.config import RouterConfig
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.store.opening import database_file

DEFAULT_TENANT: Final = "default"
LAUNCHERS: Final = ("local", "ray")
WILDCARDS: Final = ("0.0.0.0:", "[::]:", ":")
"""Beginnings of addresses that tell other hosts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(HostShare):
    """One node of the cluster."""

    node_id: str
    """Its name, unique in the cluster."""
    devices: tuple[DeviceConfig, ...]
    """Its devices, in index order."""
    address: str = ""
    """This host's address as other hosts reach it, without a port, for a cluster with agents on
    further hosts; empty: the node's processes listen on Unix sockets alone."""
    keep_pages: bool = True
    """Whether the arena of a CPU device keeps the pages of a parked state for the next one."""

    def __post_init__(self) -> None:
        check_node(self.node_id, self.devices, self)


DEFAULT_NODES: Final = (
    NodeConfig(
        node_id="local",
        devices=(
            DeviceConfig(kind="train", bytes_total=2 << 30),
            DeviceConfig(kind="rollout", bytes_total=1 << 30),
            DeviceConfig(kind="rollout", bytes_total=1 << 30),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What `plexctl up --config FILE` reads."""

    state_dir: Path = field(default_factory=default_state_dir)
    """Journal, logs, jobs and the card that tells clients where the cluster is."""
    listen: str = "127.0.0.1:50051"
    """Where clients connect; port 0 takes a free one."""
    scheduler_listen: str = ""
    """Where routers that run apart, with the cluster's keys, reach the scheduler: `HOST:PORT` or
    `unix:PATH`. For routers on other hosts give each node an `address`."""
    database: str = ""
    """SQLAlchemy URL of the store; empty: SQLite in the state directory."""
    nodes: tuple[NodeConfig, ...] = DEFAULT_NODES
    """The nodes, all on this machine, of the launcher `local`."""
    launcher: str = "local"
    """Who starts the nodes' agents: `local`, on this machine as `nodes` says, or `ray`, on hosts of
    a Ray cluster as `ray` says."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The Ray cluster of the launcher `ray`."""
    autoscaler: tuple[str, ...] = ()
    """Command that gets on its standard input, as `plexctl wanted --json` prints it, what devices
    are missing and which nodes are drained, whenever that changes; empty: none."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Bearer token → tenant; when there is none, one is made for the tenant `default`. The first is
    on the cluster's card, and its tenant may administer unless `router.operators` names others."""
    controllers: dict[str, str] = field(default_factory=dict)
    """Tenant → user of this machine as whom its submitted controllers run, so that they can neither
    read nor stop the service's processes; `plexctl` must be root to start them. Others run as
    whoever submits them."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """The scheduler's limits."""
    router: RouterConfig = field(default_factory=RouterConfig)
    """The router's limits; its own `listen`, `scheduler` and `tokens` are not used here."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """The rollout managers' limits."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """The reward service's limits. `listen` is where routers of other hosts reach it, with a port;
    empty: a Unix socket."""

    def __post_init__(self) -> None:
        names = [node.node_id for node in self.nodes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise bad_request(f"two nodes are called {twice!r}; each has a name of its own")
        self._check_launcher()
        self.router.check_roots(self.state_dir)
        if self.database:
            database_file(self.database)
        if self.reward.listen.endswith(":0") or self.reward.listen.startswith(WILDCARDS):
            raise bad_request(
                f"reward.listen = {self.reward.listen!r}, which tells routers of other hosts "
                "nothing; give HOST:PORT as they reach it"
            )

    def _check_launcher(self) -> None:
        if self.launcher not in LAUNCHERS:
            problem = f"is {self.launcher!r}; it is {' or '.join(LAUNCHERS)}"
        elif self.launcher == "local" and self.ray != RayConfig():
            problem = 'is "local", and [ray] is given, too; set launcher = "ray", or leave that out'
        elif self.launcher == "ray" and self.nodes not in ((), DEFAULT_NODES):
            problem = 'is "ray", and [[nodes]] are given, too; say in ray.pools what nodes have'
        elif self.launcher == "ray" and not (self.ray.address and self.ray.pools):
            problem = 'is "ray", which needs ray.address and a pool in ray.pools'
        else:
            return
        raise bad_request(f"launcher {problem}")

"""Configuration of a node agent: one TOML file, read by `plexsvc.config.load`."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from plexsvc.errors import bad_request
from plexsvc.fixed import Fixed
from plexsvc.ids import rollout_kind
from plexsvc.rpc.addresses import UNIX, host_of

DEVICE_KINDS: Final = ("train", "rollout", "spot", "reward")
DEVICE_MEMORIES: Final = ("cpu", "cuda")
_WILDCARDS: Final = ("0.0.0.0:", "[::]:", ":")
_NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """One device of the node; its index is its place in the list."""

    kind: str
    """`train`, `rollout`, `spot` or `reward`: which processes may use it. Spot devices take further
    rollout instances of deployments that ask for them, and may be taken away at any time. A device
    for rewards is `cpus` processors and `bytes_total` of host memory that reward workers may hold
    together, or, with a `gpu`, one GPU that one worker holds at a time."""
    bytes_total: int
    """Memory of the device: of states on a CPU host, where a device is an arena; on a GPU of
    contexts and passes, too."""
    memory: str = "cpu"
    """`cpu`: a shared-memory arena of `bytes_total`; `cuda`: memory of a GPU."""
    gpu: int | None = None
    """The GPU of a `cuda` device; devices may share one, each within its `bytes_total`. By default
    the one of the device's index."""
    tp: int | None = None
    """Tensor ranks of the engine on a `rollout` device; none: 1. It takes deployments of this
    degree alone. With memory `cuda` it is that many GPUs, of which `gpu` is the first, and
    `bytes_total` is that of all together."""
    cpus: int | None = None
    """Processors of a `reward` device without a GPU."""

    def __post_init__(self) -> None:
        if self.kind not in DEVICE_KINDS:
            raise bad_request(f"kind is {self.kind!r}; a device is {', '.join(DEVICE_KINDS)}")
        if self.memory not in DEVICE_MEMORIES:
            raise bad_request(f"memory is {self.memory!r}; it is {' or '.join(DEVICE_MEMORIES)}")
        stands_in = self.kind == "reward" and self.memory == "cpu"
        if self.gpu is not None and (self.gpu < 0 or not (self.memory == "cuda" or stands_in)):
            raise bad_request(
                f"gpu is {self.gpu}, memory {self.memory!r}; a cuda device has a gpu from 0"
            )
        if self.kind == "reward" and self.memory == "cuda" and self.gpu is None:
            raise bad_request(
                "gpu of a reward device with memory 'cuda' is missing; say which GPU it is"
            )
        if self.tp is not None and (self.kind != "rollout" or self.tp < 2):
            raise bad_request(
                f"tp is {self.tp}, kind {self.kind!r}; a rollout device has a tp from 2, or none"
            )
        if self.tp is not None and self.memory == "cuda" and self.gpu is None:
            raise bad_request(
                f"gpu of a device with tp = {self.tp} is missing; say the first of them"
            )
        takes = self.kind == "reward" and self.gpu is None
        if takes != (self.cpus is not None) or (self.cpus is not None and self.cpus < 1):
            raise bad_request(
                f"cpus is {self.cpus}, kind {self.kind!r}, gpu {self.gpu}; a reward device without "
                "a gpu has 1 at least, and no other has any"
            )
        if self.bytes_total <= 0:
            raise bad_request(f"bytes_total is {self.bytes_total}; a device has some memory")

    @property
    def placed_as(self) -> str:
        """Return the kind that the scheduler knows it by: that of engines of so many ranks."""
        return rollout_kind(self.tp or 1) if self.kind == "rollout" else self.kind

    def gpus(self, index: int) -> range:
        """Return the GPUs of a device, whose place in the list is `index`, that has some."""
        first = index if self.gpu is None else self.gpu
        return range(first, first + (self.tp or 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """A warm process image: what a zygote has imported before it forks."""

    name: str
    """What `ProcSpec.image` calls it, and the kind of device whose nodes have it warm. Nodes that
    only train start `rollout` when a job first generates there, and any starts `manager` with its
    first rollout manager."""
    preload: str
    """Module to import. Its literal `ZYGOTE_ENV` is the environment; `preload()` is then called."""
    entrypoint: str
    """What its processes run: `module:function`, called with configuration and `ready`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What a host gives the node on it."""

    host_bytes: int = 4 << 30
    """Host memory for parked state and published weight versions."""
    disk_bytes: int = 0
    """Bytes of `disk_dir` for parked state that finds no room in host memory; 0: none."""
    disk_dir: Path = Path()
    """Directory on a local disk that takes direct I/O, ext4 or xfs."""
    site: str = ""
    """Where it is: versions of other sites come to one node of a site, and from it to the others.
    Empty: each node gets its own."""
    staging_bytes: int = 1 << 30
    """Memory in which payloads wait on the node; a quarter of it is kept for answers, and a tenant
    has as much as is left free."""
    orphan_us: int = 60_000_000
    """How long the node's agent, and what it runs, outlives a service that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(HostShare):
    """What a node agent needs to know."""

    node_id: str
    """Name of the node, unique in the cluster."""
    devices: tuple[DeviceConfig, ...]
    """Devices of the node, in index order."""
    runtime_dir: Path
    """Sockets, rendezvous files. Short: a Unix socket's path has at most 107 bytes."""
    log_dir: Path | None = None
    """Where the logs of the node's processes go; by default `logs` in the runtime directory."""
    is_replacement: bool = False
    """An earlier agent of this node died: the first event says that its state manager is new."""
    listen: str = ""
    """Where the agent serves: `HOST:PORT` of this node as others reach it (its state manager,
    ranks and instances take free ports of the same host), or empty: Unix sockets in the runtime
    directory, for a cluster on one host."""
    keys_file: Path
    """The cluster's keys, from its state directory; readable by this user alone."""
    images: tuple[ImageConfig, ...] = (
        ImageConfig(
            name="train",
            preload="plexsvc.worker.preload",
            entrypoint="plexsvc.worker.main:main",
        ),
        ImageConfig(
            name="rollout",
            preload="plexsvc.rollout.preload",
            entrypoint="plexsvc.rollout.forked:main",
        ),
        ImageConfig(
            name="reward",
            preload="plexsvc.reward.preload",
            entrypoint="plexsvc.reward.host:main",
        ),
        ImageConfig(
            name="manager",
            preload="plexsvc.rollout.manager_preload",
            entrypoint="plexsvc.rollout.main:main",
        ),
    )
    """Warm images this node can fork from."""
    state_manager_argv: tuple[str, ...] = ()
    """Command of the state manager; empty: this Python with `-m plexsvc.statemanager.main`."""
    max_versions_per_deployment: Fixed[int] = 8
    """Published weight versions the state manager keeps of one deployment."""
    keep_pages: bool = True
    """Whether the arena of a CPU device keeps the pages of a parked state for the next one."""
    start_timeout_us: Fixed[int] = 120_000_000
    """How long the state manager may take to start, and a zygote to preload."""
    ready_timeout_us: int = 300_000_000
    """How long a process may take from its fork to `ready(address)`."""
    max_processes: Fixed[int] = 256
    """Living ranks on this node; the next spawn is refused."""
    max_records: Fixed[int] = 2048
    """Ended processes remembered, so that a repeated spawn is answered from the record."""
    max_events: Fixed[int] = 4096
    """Events kept for replay."""
    max_log_bytes: Fixed[int] = 64 << 20
    """Size at which a log is emptied; what it held before is kept beside it once (`.log.1`)."""
    max_logs: Fixed[int] = 256
    """Log files of ended processes kept; the oldest go first."""
    max_restarts: int = 8
    """Restarts within `restart_window_us` of the state manager, before the agent gives the node up,
    and of each zygote, before it waits for the window to pass."""
    restart_window_us: Fixed[int] = 3_600_000_000
    """Restarts longer ago are forgotten."""
    orphan_us: int = 0
    """How long the agent goes on when nobody renews its lease; then it ends what it runs and
    leaves. 0: it stays, with its ranks for as long as the last renewal said."""
    state_manager_silence_us: Fixed[int] = 15_000_000
    """How long a state manager may show no progress before it is taken for hung and replaced."""

    def __post_init__(self) -> None:
        check_node(self.node_id, self.devices, self)
        if self.listen.startswith(_WILDCARDS):
            raise bad_request(
                f"listen of node {self.node_id} is {self.listen!r}, which tells nobody where it "
                "is; give the address by which other hosts reach this node"
            )

    @property
    def host(self) -> str:
        """The node's address for other hosts; empty when it listens on Unix sockets alone."""
        return host_of(self.listen)

    def address(self, name: str, *, port: int = 0) -> str:
        """Return where a process of this node listens: a socket called `name`, or a port."""
        return f"{self.host}:{port}" if self.host else f"{UNIX}{self.runtime_dir / name}.sock"


def host_share(host: HostShare) -> dict[str, Any]:
    """Return what a host gives its node, by key."""
    return {field.name: getattr(host, field.name) for field in fields(HostShare)}


def check_node(node_id: str, devices: Sequence[DeviceConfig], host: HostShare) -> None:
    """Refuse a node that could not be: its name is part of paths, its memory is real.

    Raises:
        PlexError: `bad_request`.
    """
    if not node_id.strip(".") or not _NAME_CHARACTERS.issuperset(node_id):
        raise bad_request(f"node_id is {node_id!r}; a node's name is made of a-z A-Z 0-9 . _ -")
    if not devices:
        raise bad_request(f"node {node_id} has no devices; give it one at least")
    _check_gpus(node_id, devices)
    for key, nbytes in (("host_bytes", host.host_bytes), ("staging_bytes", host.staging_bytes)):
        if nbytes <= 0:
            raise bad_request(f"{key} of node {node_id} is {nbytes}; it must be above 0")
    if host.disk_bytes < 0 or (host.disk_bytes and not host.disk_dir.is_absolute()):
        raise bad_request(
            f"node {node_id} has disk_bytes = {host.disk_bytes} and disk_dir = "
            f"{str(host.disk_dir)!r}; give the bytes, 0 or more, and a directory's whole path"
        )


def _check_gpus(node_id: str, devices: Sequence[DeviceConfig]) -> None:
    """Refuse a GPU that a worker of rewards, or one of several ranks, would share."""
    gpus = [
        gpu
        for index, device in enumerate(devices)
        if device.memory == "cuda" or device.gpu is not None
        for gpu in device.gpus(index)
    ]
    for index, device in enumerate(devices):
        shared = [gpu for gpu in device.gpus(index) if gpus.count(gpu) > 1]
        if device.tp is not None and device.memory == "cuda" and shared:
            raise bad_request(
                f"gpu {shared[0]} of node {node_id} is of a device with tp = {device.tp} and of "
                "another, too; tensor ranks wait for each other: give them GPUs of their own"
            )
        if device.kind == "reward" and device.gpu is not None and gpus.count(device.gpu) > 1:
            raise bad_request(
                f"gpu {device.gpu} of node {node_id} is of kind reward and another device's, too; "
                "a reward worker holds a whole GPU: give it one of its own"
            )

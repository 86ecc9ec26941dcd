"""The state manager's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plexsvc.fixed import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """One device of the node."""

    index: int
    """Its number on this node."""

    bytes_total: int
    """Bytes that state may take on it; enforced."""

    kind: str = "train"
    """What it is used for; `train` and `rollout` devices are budgeted alike."""

    memory: str = "cpu"
    """`cpu`: a shared-memory arena of `bytes_total`; `cuda`: memory of a GPU."""

    gpu: int | None = None
    """The GPU of a `cuda` device, which others may share; by default the one of its index."""

    tp: int = 1
    """How many GPUs it is, of which that is the first."""

    @property
    def gpu_index(self) -> int:
        """The GPU it lies on."""
        return self.index if self.gpu is None else self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class StateManagerConfig:
    """One state manager."""

    node_id: str
    """The node it serves."""

    site: str = ""
    """Where it is: versions of other sites come to one node of a site, and from it to the others.
    Empty: each node gets its own."""

    runtime_dir: Path
    """Directory of its Unix socket; made when missing, private to this user."""

    devices: tuple[TierConfig, ...] = ()
    """Devices whose memory it owns."""

    host_bytes: int = 4 << 30
    """Host memory for parked state and published versions together."""

    disk_bytes: int = 0
    """Bytes of `disk_dir` for parked state that finds no room in host memory; 0: none."""

    disk_dir: Path = Path()
    """Directory on a local disk that takes direct I/O; nothing with a name is written there."""

    staging_bytes: int = 1 << 30
    """Memory for payloads and results that wait, a quarter of it for results alone; more is refused
    with `staging_full`. A tenant has as much of either part as is left free."""

    max_versions_per_deployment: int = 8
    """Published weight versions kept per deployment; the next is refused until one is released."""

    max_staged_per_job: int = 256
    """Staged bundles one job may have; the next is refused with `staging_full`."""

    max_wpgs: int = 256
    """WPGs with state on this node."""

    rank_timeout_us: Fixed[int] = 60_000_000
    """Longest wait for a rank's answer inside a move; a rank that is slower is cut off."""

    resume_timeout_us: Fixed[int] = 20_000_000
    """How long a new state manager waits for the clients of the one before it; one that does not
    come back is taken for dead. No device memory is granted while one with regions is missing."""

    keep_pages: bool = True
    """Pages of a parked WPG stay with a CPU device's arena for the next one; false returns them to
    the machine at every switch, which adds half the time of the copies, with `huge_pages = false`
    eight times it (`benchmarks/context_switch.py`)."""

    huge_pages: bool = True
    """CPU devices of at least 2 MiB lie in 2 MiB pages where the kernel allows it."""

    keys_file: Path = Path()
    """The cluster's keys, from the node agent; without them it does not start."""

    listen: str = ""
    """Address of the control plane, `HOST:PORT` or `unix:PATH`; empty: `state.sock` in the runtime
    directory."""

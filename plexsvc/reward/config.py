"""Configuration of the reward service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plexsvc.errors import bad_request
from plexsvc.fixed import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """The `[reward]` table."""

    listen: str = ""
    """Where routers reach the proxy: `unix:PATH` or `HOST:PORT`."""

    min_workers: Fixed[int] = 1
    """Workers that are kept ready."""

    max_workers: int = 0
    """Processors for workers where no node has a device of kind `reward`; 0: the machine's."""

    idle_us: Fixed[int] = 60_000_000
    """How long a worker beyond `min_workers` may have nothing to do; then it is stopped."""

    worker_start_us: Fixed[int] = 30_000_000
    """How long a worker may take to start."""

    no_room_us: Fixed[int] = 600_000_000
    """How long a sample waits while every node that could run it is closed or lost; then it is
    answered as an error with the cause."""

    keep_us: Fixed[int] = 60_000_000
    """How long a batch that nobody asks for is kept: then its samples are not run, and its scores
    are dropped."""

    max_batches: Fixed[int] = 1024
    """Batches that one tenant may have with the proxy; more are refused with `queue_full`."""

    max_delay_us: Fixed[int] = 1_000_000
    """How much later a batch may end by the plan than with a worker for each of its samples."""

    timeout_share: Fixed[float] = 1.0
    """How much of the timeouts of its stages a sample that waits is planned to take; less gives
    plans with fewer workers, and batches that end later when samples take longer."""

    spare_us: Fixed[int] = 5_000_000
    """For how much longer than until the next plan the workers that are held must suffice: as long
    as one takes to start."""

    max_samples: Fixed[int] = 65_536
    """Samples that one tenant may have with the proxy, scored ones that are kept among them; more
    are refused with `queue_full`."""

    max_bytes: int = 1 << 30
    """Bytes that one tenant may have in the proxy's memory: samples, settings, own programs in use,
    small files, and output of answers that are kept; more samples are refused with `queue_full`,
    and output beyond it is left out."""

    max_spilled_bytes: Fixed[int] = 16 << 30
    """Bytes of files that samples of one tenant may have on disk, in `spill` beside `programs_dir`:
    those between stages and those of answers that are kept. A sample that leaves more ends as an
    `error`."""

    max_program_bytes: Fixed[int] = 64 << 20
    """Bytes of the programs of one tenant, with the older versions that are kept; more are refused
    with `payload_too_large`."""

    max_stage_bytes: Fixed[int] = 8 << 30
    """Memory that a stage of a tenant's own program may ask for; more is refused with
    `bad_request`."""

    def __post_init__(self) -> None:
        if self.max_workers and self.min_workers > self.max_workers:
            raise bad_request(
                f"min_workers = {self.min_workers} is more than max_workers = {self.max_workers}"
            )
        if not 0 <= self.timeout_share <= 1:
            raise bad_request(f"timeout_share = {self.timeout_share}; it is a share, from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardServiceConfig(RewardConfig):
    """What planner and proxy read: the `[reward]` table, and what the service fills in."""

    keys_file: Path = Path()
    """The cluster's keys."""

    on_nodes: bool = False
    """Whether workers run on the nodes that the scheduler names; else they are processes of the
    proxy."""

    planner: str = ""
    """Where the planner listens; empty: pools follow their queues."""

    plan_every_us: int = 10_000_000
    """How often the pools are planned while batches are under way, beside their begins and ends."""

    history_dir: Path = Path()
    """Where the planner keeps what it knows of jobs."""

    programs_dir: Path = Path()
    """Where tenants' own programs are kept."""

"""The bounds and priors of the core: the keys of the `scheduler` configuration that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.errors import bad_request
from plexsvc.fixed import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The core's bounds and priors: the keys of the `scheduler` configuration that it reads."""

    max_jobs: int = 4096
    """Jobs that may be open at once; the next is refused with `queue_full`. A tenant has as many
    of them at most as are left free."""
    max_deployments_per_job: Fixed[int] = 64
    """Deployments of one job, which end with it; the next is refused with `bad_request`."""
    max_pending_per_wpg: Fixed[int] = 64
    """Operations a deployment may have waiting; the next is refused with `queue_full`."""
    max_gap: Fixed[int] = 64
    """How far a sequence number may be ahead of one that is missing."""
    max_overlapping_generates: Fixed[int] = 16
    """Generates of one rollout deployment that run at the same time."""
    max_answered_per_deployment: Fixed[int] = 1024
    """Answers kept for a client that does not acknowledge; the oldest go first."""
    max_move_tries: Fixed[int] = 5
    """Tries of a context switch that finds no room, before its operation is refused."""
    gap_timeout_us: Fixed[int] = 30_000_000
    """How long a missing number or an unseen `after` holds an operation."""
    staging_timeout_us: Fixed[int] = 300_000_000
    """How long an operation waits for its payload while nothing of it comes."""
    spawn_timeout_us: Fixed[int] = 180_000_000
    """How long a WPG's processes may take to answer."""
    max_respawns: Fixed[int] = 3
    """Times that one lost rollout instance is spawned again in `respawn_window_us`; once more, and
    its deployment ends."""
    respawn_window_us: Fixed[int] = 600_000_000
    """The time in which `max_respawns` counts."""
    placement_timeout_us: int = 0
    """How long a deployment waits for devices that others hold before it fails; 0: until it gets
    them."""
    relocation_timeout_us: Fixed[int] = 600_000_000
    """How long a relocation waits for its new processes and a step boundary."""
    policy: str = "plex"
    """How jobs are placed and operations ordered, by the names that `plexctl simulate` knows."""
    max_deployments_per_group: int = 5
    """Training deployments that may time-share a group of devices."""
    duty_cap_ppm: Fixed[int] = 0
    """Bound on the sum of a group's duties, in parts per million; 0, as of the next two: what the
    policy says. Simulations and journals of other policies say it."""
    tenant_weights: dict[str, int] = field(default_factory=dict)
    """Weights of tenants that do not have 1: who waits with twice the weight gets twice as much."""
    max_slowdown_ppm: int = 1_500_000
    """How much longer a job's cycle may get by sharing, when the job does not say."""
    target_slowdown_ppm: Fixed[int] = 0
    """Predicted slowdown up to which a job with slack is placed with others."""
    critical_target_ppm: Fixed[int] = 0
    """The same for a job that waits on its critical path."""
    link_bytes_s: Fixed[int] = 10_000_000_000
    """Bytes a second between nodes: what a move is charged by."""
    probe_timeout_us: Fixed[int] = 600_000_000
    """How long a cycle may take to be measured before the job counts by its busy share alone."""
    move_retry_us: Fixed[int] = 200_000
    """Pause before a context switch that found no room is tried again."""
    prior_switch_us_per_gib: Fixed[int] = 400_000
    """Switch cost assumed of a WPG never switched, for each GiB of its largest rank."""

    def __post_init__(self) -> None:
        for tenant, weight in self.tenant_weights.items():
            if weight < 1:
                raise bad_request(f"tenant_weights.{tenant}: {weight} given; a weight is 1 or more")

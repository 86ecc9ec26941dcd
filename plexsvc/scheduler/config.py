"""The scheduler's configuration: the core's limits and what the driver adds."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.fixed import Fixed
from plexsvc.scheduler.core.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(Limits):
    """The `scheduler` table of the cluster's configuration file."""

    session_ttl_us: int = 60_000_000
    """A job is cancelled when no KeepAlive came for so long, unless it asked for another time."""
    max_session_ttl_us: Fixed[int] = 3_600_000_000
    """Longest session time to live a job may ask for."""
    tenant_priorities: dict[str, int] = field(default_factory=dict)
    """Highest priority each tenant may give its jobs; 0 for tenants that are not named."""
    node_lease_us: int = 10_000_000
    """A node is lost when its agent has answered no renewal for so long."""
    node_grace_us: Fixed[int] = 60_000_000
    """How long an agent that hears of no renewal keeps its ranks: longer than the lease, so that a
    scheduler that was stopped for a while, or a network that was cut, costs no job of the node."""
    node_forget_us: Fixed[int] = 86_400_000_000
    """A node that is lost for so long is dialed no more and leaves the list; `plexctl node add`
    takes it in again."""
    node_certificate_us: int = 31_536_000_000_000
    """How long the certificate of a node that joins is valid. It is renewed while the node is up,
    from the last third on."""
    connect_retry_us: Fixed[int] = 500_000
    """Pause before a node agent that does not answer is tried again."""
    rpc_timeout_us: Fixed[int] = 10_000_000
    """Deadline of a short call to a node agent, state manager or rank."""
    progress_timeout_us: int = 600_000_000
    """How long an operation, or a move, copy, save or digest of state, may make no progress before
    it is ended, and its processes with it if they do not end it. While it gets on, it may take as
    long as it likes."""
    state_manager_retry_us: Fixed[int] = 30_000_000
    """How long a call to a state manager that died is repeated, until its successor answers."""
    exit_report_us: Fixed[int] = 3_000_000
    """How long to wait for the node agent's word when a rank's connection breaks."""
    history_days: int = 30
    """At the start, journals and operations of schedulers replaced longer ago, jobs that ended
    longer ago with their deployments, and cycles measured longer ago, are deleted."""
    max_inbox: Fixed[int] = 4096
    """Events that may wait to be decided; further submissions are refused with `unavailable`."""
    max_operations_per_stream: Fixed[int] = 65_536
    """Operations that one router apart may have under way; the next is refused with `queue_full`
    and may be submitted again."""
    max_batch: Fixed[int] = 256
    """Events decided and journaled together."""
    max_held_payload_bytes: Fixed[int] = 256 << 20
    """Inline payloads held for waiting operations; the next is refused with `queue_full`."""
    max_result_bytes: Fixed[int] = 256 << 20
    """Answers kept for clients that may ask again; the oldest go first (`result_gone`)."""
    max_versions_per_deployment: Fixed[int] = 2
    """Published weight versions kept for each deployment; older ones are released."""
    max_ended_jobs: Fixed[int] = 256
    """Ended jobs that `status` and `job list` still show."""
    inline_append_us: Fixed[int] = 500
    """The journal is written on the event loop while that lately took less; 0: on a thread."""
    snapshot_rows: int = 20_000
    """Rows of the journal between two snapshots of the core; rows before the last two are deleted.
    0: no snapshots, the journal of a running scheduler is kept whole."""
    kv_cache_bytes: int = 0
    """KV cache of a rollout instance when a deployment does not say; 0: 64 MiB on a CPU, on a GPU
    what the device's budget leaves beside the weights."""
    adapter_bytes: int = 0
    """Memory that an engine has for the adapters of rollouts that share it: as many as have room,
    64 at most, each counted as of the engine's rank. Others get a further engine. 0: every rollout
    has an engine of its own, into which its adapters are merged."""
    max_num_seqs: int = 0
    """Sequences a rollout instance runs at once; 0: 64 on a CPU, 256 on a GPU."""
    max_model_len: int = 2048
    """Context of a rollout deployment that does not say, if its model allows it."""

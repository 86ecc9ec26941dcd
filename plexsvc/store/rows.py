"""The rows the scheduler writes, as values; `tables` makes a table of each type.

A text with a number has a column of so many characters, one without of any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

Small = Annotated[int, 32]
"""A whole number of 32 bits; others have 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """One event: `idx` counts from 1 within its epoch; `body` is JSON of version `version`."""

    idx: int
    at_us: int
    kind: Annotated[str, 64]
    version: Small
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """The core behind row `idx` of its journal; `body` is of version `version`."""

    idx: int
    at_us: int
    version: Small
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as it is now."""

    job_id: Annotated[str, 128]
    tenant: Annotated[str, 128]
    name: Annotated[str, 256]
    state: Annotated[str, 16]
    reason: str
    exit_code: Small | None
    created_us: int
    ended_us: int
    record: bytes = b""
    """The job as its client knows it (a `Job` of the wire)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRow:
    """A deployment as it is now."""

    deployment_id: Annotated[str, 256]
    tenant: Annotated[str, 128]
    job_id: Annotated[str, 128]
    lease_no: int
    incarnation: int
    applied_seq: int
    role: Annotated[str, 32]
    backend: Annotated[str, 32]
    model: str
    wpg_id: Annotated[str, 64]
    state: Annotated[str, 16]
    error: str
    record: bytes = b""
    """The deployment as its client and its ranks know it (a `Deployment` of the wire)."""
    versions: bytes = b""
    """Its published versions, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """An operation that was answered."""

    operation_id: bytes
    tenant: Annotated[str, 128]
    job_id: Annotated[str, 128]
    deployment_id: Annotated[str, 256]
    lease_no: int
    incarnation: int
    seq: int
    kind: Annotated[str, 32]
    state: Annotated[str, 16]
    digest: Annotated[str, 128]
    error_code: Annotated[str, 32]
    submitted_us: int
    answered_us: int
    answer: bytes = b""
    """What its client is told (an `OperationResult`), where no rank has it on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGone:
    """An operation whose answer was acknowledged: its row goes."""

    operation_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOperationRow:
    """An operation that a durable deployment runs again when it is rebuilt."""

    deployment_id: Annotated[str, 256]
    slot: Small
    seq: int
    operation: bytes
    """As it was sent (an `Operation` of the wire)."""
    staged_on: str
    """JSON: the nodes that have its inputs."""
    digest: Annotated[str, 128]
    error_code: Annotated[str, 32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """A measured cycle, by what makes two runs the same for planning; `body` is JSON."""

    tenant: Annotated[str, 128]
    model: Annotated[str, 512]
    layout: Annotated[str, 256]
    name: Annotated[str, 512]
    at_us: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node that an operator added: who leads the cluster next dials its agent, too."""

    agent: Annotated[str, 256]
    """Where its agent listens."""
    node_id: Annotated[str, 128]
    is_member: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token that an operator made; times are of the wall clock, 0: never."""

    token_id: Annotated[str, 64]
    tenant: Annotated[str, 128]
    scope: Annotated[str, 16]
    name: Annotated[str, 256]
    hash: bytes
    """SHA-256 of its secret."""
    created_us: int
    expires_us: int
    revoked_us: int

    def ended_us(self, now_us: int) -> int:
        """Return since when it lets nobody in, 0 while it does."""
        # 0 says never, so it is no end.
        ends = [at_us for at_us in (self.revoked_us, self.expires_us) if 0 < at_us <= now_us]
        return min(ends, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A certificate that a node was given; times are of the wall clock."""

    serial: Annotated[str, 64]
    node_id: Annotated[str, 128]
    token_id: Annotated[str, 64]
    """The token that it joined with; empty: a launcher asked for it."""
    key: Annotated[str, 64]
    """SHA-256 of its public key."""
    certificate: str
    """PEM."""
    issued_us: int
    expires_us: int
    shut_out_us: int
    """0: it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """How much of something a tenant may have; 0: a quota that was lifted."""

    tenant: Annotated[str, 128]
    what: Annotated[str, 32]
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What a job had used by a kind of work, since its beginning, as of an hour of the wall clock.

    The kinds are those of operations, and `switch_in`, `switch_out`, `turns`, `memory`, `pooled`.
    """

    job_id: Annotated[str, 128]
    kind: Annotated[str, 32]
    hour_us: int
    """When the hour begins in which it was read."""

    count: int = 0
    device_us: int = 0
    switch_us: int = 0
    tokens: int = 0
    nbytes: int = 0
    host_mib_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargesRow:
    """What a job's operations were charged between two readings of its bill."""

    job_id: Annotated[str, 128]
    first: int
    last: int
    """Numbers of its first and last charge, counted from 1 in each job."""

    body: bytes
    """A `CostReply` with a cost for each operation and account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """What a router remembers for a client, under a key of its own."""

    tenant: Annotated[str, 128]
    key: Annotated[str, 512]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGone:
    """What a router remembers no longer."""

    tenant: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What a job used by a kind of work, with whose it is."""

    tenant: str
    name: str
    used: UsageRow


Row = (
    JobRow
    | DeploymentRow
    | OperationRow
    | OperationGone
    | KeptOperationRow
    | ProfileRow
    | NodeRow
    | TokenRow
    | MemberRow
    | QuotaRow
    | UsageRow
    | ChargesRow
    | RecordRow
    | RecordGone
)

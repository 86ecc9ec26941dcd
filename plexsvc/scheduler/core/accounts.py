"""Accounts of what jobs have used, by kind of work, and of host memory kept for them."""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import DeploymentId, JobId, OperationId


@dataclass(slots=True, kw_only=True)
class HostBytes:
    """Host memory that is kept since a time."""

    nbytes: int = 0
    since_us: int = 0

    def spent(self, now_us: int) -> int:
        """Return bytes times microseconds until now."""
        return self.nbytes * max(0, now_us - self.since_us)


@dataclass(slots=True, kw_only=True)
class Usage:
    """What a job has used by one kind of work, in numbers that only grow."""

    count: int = 0
    """Operations that succeeded; of moves, devices that they were made on."""
    device_us: int = 0
    switch_us: int = 0
    tokens: int = 0
    nbytes: int = 0
    """Bytes that travelled: payloads and results of operations, state that was moved."""

    host_byte_us: int = 0
    """Bytes of host memory that were kept for it, times microseconds."""

    @property
    def host_mib_s(self) -> int:
        """Return these in MiB times whole seconds."""
        return self.host_byte_us // (1_000_000 << 20)

    def add(self, more: Usage) -> None:
        """Add what an operation used; host memory is charged by itself."""
        self.count += more.count
        self.device_us += more.device_us
        self.switch_us += more.switch_us
        self.tokens += more.tokens
        self.nbytes += more.nbytes


@dataclass(slots=True, kw_only=True)
class Charge:
    """What an operation added to an account of its job; never changed, but quicker to make so."""

    job_id: JobId
    number: int
    """Which of its job's it is, counted from 1."""

    kind: str
    """Of the account: the operation's kind, or `switch_in`."""

    operation_id: OperationId
    deployment_id: DeploymentId
    seq: int
    at_us: int
    used: Usage

"""Fencing: the rule by which a process refuses the commands of a sender that was replaced.

A command carries three numbers that only grow and are never merged: `scheduler_epoch` (which
scheduler leads), `lease_no` (which use of a device set) and `incarnation` (which processes of a
WPG). Whoever receives commands refuses one whose number is older than the newest it has seen.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from plexsvc.errors import ErrorCode, PlexError


class Fence(Protocol):
    """The fencing numbers of a command, as `common_pb2.Fence` carries them."""

    @property
    def scheduler_epoch(self) -> int:
        """Number of the scheduler that leads."""

    @property
    def lease_no(self) -> int:
        """Number of the lease on the device set; 0 when the command needs no device."""

    @property
    def incarnation(self) -> int:
        """Number of the WPG's processes; 0 means whichever live."""


def refuse_older(what: str, number: str, *, given: int, seen: int) -> None:
    """Refuse the command `what` when its fencing number `number` is older than the newest seen.

    Raises:
        PlexError: `stale_fence`, with `number`, `given` and `seen` as facts.
    """
    if given < seen:
        _refuse(what, number, given=given, seen=seen)


class Gate:
    """The newest fencing numbers that one recipient has seen. A refused command changes none.

    Commands that run alone on their devices raise the lease number that later ones must have
    reached. Those that may overlap (generates) arrive out of order, so they do not raise it.
    """

    def __init__(
        self,
        *,
        scheduler_epoch: int = 0,
        incarnation: int = 0,
        is_process: bool = False,
        is_shared: bool = False,
    ) -> None:
        """Start from these numbers. A gate that `is_process` refuses newer incarnations too.

        One that `is_shared` stands before what deployments use in turn, under leases and
        incarnations of their own: it compares the scheduler's epoch alone.
        """
        self._scheduler_epoch = scheduler_epoch
        self._lease_no = 0
        self._incarnation = incarnation
        self._is_process = is_process
        self._is_shared = is_shared

    def admit_exclusive(self, fence: Fence, *, what: str) -> None:
        """Admit a command that runs alone on its devices.

        Raises:
            PlexError: `stale_fence`.
        """
        self.admit_shared(fence, what=what)
        if not self._is_shared:
            self._lease_no = fence.lease_no

    def admit_shared(self, fence: Fence, *, what: str) -> None:
        """Admit a command that may overlap with others of its kind.

        Raises:
            PlexError: `stale_fence`.
        """
        refuse_older(what, "lease_no", given=fence.lease_no, seen=self._lease_no)
        self.admit_leader(fence, what=what)

    def admit_leader(self, fence: Fence, *, what: str) -> None:
        """Admit a command that uses no device: a repeat, a cancellation.

        Raises:
            PlexError: `stale_fence`.
        """
        refuse_older(
            what, "scheduler_epoch", given=fence.scheduler_epoch, seen=self._scheduler_epoch
        )
        if not self._is_shared:
            refuse_older(what, "incarnation", given=fence.incarnation, seen=self._incarnation)
            if self._is_process and fence.incarnation != self._incarnation:
                _refuse(what, "incarnation", given=fence.incarnation, seen=self._incarnation)
            self._incarnation = fence.incarnation
        self._scheduler_epoch = fence.scheduler_epoch


def _refuse(what: str, number: str, *, given: int, seen: int) -> NoReturn:
    raise PlexError(
        ErrorCode.STALE_FENCE,
        f"{what} refused: it carries {number} {given} and {seen} was seen; whoever sent it was "
        "replaced",
        number=number,
        given=given,
        seen=seen,
    )

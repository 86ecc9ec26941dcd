"""The gate every order passes: it refuses numbers older than those already seen."""

from __future__ import annotations

from collections.abc import Mapping

from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError


class FenceGate:
    """Remembers the highest of each fencing number; the three are never merged.

    Generates overlap, each under a lease number of its own, and may arrive out of order: only
    exclusive orders raise the lease number that later ones must have reached.
    """

    def __init__(self, *, scheduler_epoch: int = 0, incarnation: int = 0) -> None:
        self._seen = {
            "scheduler_epoch": scheduler_epoch,
            "lease_no": 0,
            "incarnation": incarnation,
        }

    def admit_exclusive(self, fence: common_pb2.Fence, *, what: str) -> None:
        """Admit an order that runs alone on its devices.

        Raises:
            PlexError: `stale_fence`, naming the number, when one is older; nothing changes then.
        """
        self._admit(_numbers(fence), what=what)
        self._seen["lease_no"] = fence.lease_no

    def admit_shared(self, fence: common_pb2.Fence, *, what: str) -> None:
        """Admit an order that may overlap with others of its kind.

        Raises:
            PlexError: `stale_fence`.
        """
        self._admit(_numbers(fence), what=what)

    def admit_leader(self, fence: common_pb2.Fence, *, what: str) -> None:
        """Admit an order that uses no device: a repeat, a cancellation.

        Raises:
            PlexError: `stale_fence`.
        """
        numbers = _numbers(fence)
        del numbers["lease_no"]
        self._admit(numbers, what=what)

    def _admit(self, given: Mapping[str, int], *, what: str) -> None:
        for name, number in given.items():
            if number < self._seen[name]:
                raise PlexError(
                    ErrorCode.STALE_FENCE,
                    f"{what} refused: it carries {name} {number} and {self._seen[name]} was seen; "
                    f"whoever sent it was replaced",
                    number=name,
                    given=number,
                    seen=self._seen[name],
                )
        for name in ("scheduler_epoch", "incarnation"):
            self._seen[name] = given[name]


def _numbers(fence: common_pb2.Fence) -> dict[str, int]:
    return {
        "scheduler_epoch": fence.scheduler_epoch,
        "lease_no": fence.lease_no,
        "incarnation": fence.incarnation,
    }

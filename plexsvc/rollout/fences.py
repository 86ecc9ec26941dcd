"""The gate every order passes: it refuses numbers older than those already seen."""

from __future__ import annotations

from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError


class FenceGate:
    """Remembers the highest of each fencing number; the three are never merged."""

    def __init__(
        self, *, scheduler_epoch: int = 0, lease_no: int = 0, incarnation: int = 0
    ) -> None:
        self._seen = {
            "scheduler_epoch": scheduler_epoch,
            "lease_no": lease_no,
            "incarnation": incarnation,
        }

    def admit(self, fence: common_pb2.Fence, *, what: str) -> None:
        """Raise the numbers seen to those of `fence`.

        Raises:
            PlexError: `stale_fence`, naming the number, when one is older; nothing is raised then.
        """
        given = {
            "scheduler_epoch": fence.scheduler_epoch,
            "lease_no": fence.lease_no,
            "incarnation": fence.incarnation,
        }
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
        self._seen = {name: max(number, self._seen[name]) for name, number in given.items()}

"""Notes of a run: what a virtual driver says of the orders that it performs."""

from __future__ import annotations

from collections.abc import Sequence

from plexsvc.ids import DeploymentId, OperationId, WpgId
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.sim.clients import Answer


class Notes:
    """Keeps nothing of it. All but the first and the last follow from the event in hand."""

    def happened(self, event: Event) -> None:
        """Note an event that was decided."""

    def spawning(
        self,
        wpg_id: WpgId,
        *,
        deployment_id: DeploymentId,
        places: Sequence[Place],
        is_second: bool,
    ) -> None:
        """Note that ranks start; `is_second`: in the place of others, which work on."""

    def stopping(self, wpg_id: WpgId) -> None:
        """Note that ranks end."""

    def loading(self, wpg_id: WpgId) -> None:
        """Note that a state is brought to its device."""

    def carrying(self, deployment_id: DeploymentId) -> None:
        """Note that a state is copied for other ranks."""

    def cut_over(self, deployment_id: DeploymentId, *, to_wpg_id: WpgId) -> None:
        """Note that a deployment is elsewhere from here on."""

    def started(self, operation_id: OperationId, *, wpg_id: WpgId) -> None:
        """Note that an operation runs."""

    def answered(self, answer: Answer) -> None:
        """Note what a client is told."""

    def settled(self) -> None:
        """Note that all that follows from the event was ordered."""

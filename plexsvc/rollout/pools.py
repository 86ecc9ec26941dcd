"""Pools of spot devices and of lent engines, which all managers of a cluster share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId
from plexsvc.rollout.config import SpotConfig
from plexsvc.rollout.core.instances import SERVING, SPOT, Kind
from plexsvc.rollout.links import LedDeployment
from plexsvc.rollout.providers.base import Hosts, Provider
from plexsvc.rollout.providers.lent import LentEngines, Offer
from plexsvc.rollout.providers.trace import Change
from plexsvc.rollout.spot import PooledInstances, provider_of


class Pools:
    """The pools of a cluster."""

    def __init__(
        self, *, clock: Clock, directory: Path, fleet_of: Callable[[str], LedDeployment | None]
    ) -> None:
        """Give instances to the deployments that `fleet_of` finds.

        `directory` keeps the names of spot devices and engines that operators closed.

        Raises:
            PlexError: `bad_request` for a file there that is no such list.
        """
        self._clock, self._directory, self._fleet_of = clock, directory, fleet_of
        self._lent = LentEngines(clock)
        self.lent = self._pooled(SERVING, self._lent, self._lent)
        self.spot: PooledInstances | None = None

    @property
    def _pools(self) -> list[PooledInstances]:
        return [self.lent] if self.spot is None else [self.spot, self.lent]

    def bill(self, deployment_id: str, use: service_pb2.JobUse) -> None:
        """Add to `use` what a deployment had of spot devices and lent engines, and its cost."""
        for one in self._pools:
            if found := one.pool.bills.get(DeploymentId(deployment_id)):
                use.pooled_us += found.held_us
                use.cost += found.cost

    def offer(self, request: service_pb2.LendInstanceRequest) -> None:
        """Let deployments have the guest of a serving engine until its lease ends; 0 withdraws it.

        Raises:
            PlexError: `bad_request`, naming the field; `queue_full`.
        """
        offer = Offer(
            name=request.name,
            address=request.address,
            model=request.model,
            price=request.price,
            owner=request.owner,
            lend_to=frozenset(request.lend_to),
        )
        self._lent.lend(offer, lease_us=request.lease_us)

    def use(
        self, hosts: Hosts, changes: Sequence[Change], *, config: SpotConfig
    ) -> PooledInstances:
        """Give deployments spot instances from now on, while what this returns runs."""
        provider = provider_of(config, changes, hosts=hosts, clock=self._clock)
        self.spot = self._pooled(SPOT, hosts, provider)
        return self.spot

    def _pooled(self, kind: Kind, hosts: Hosts, provider: Provider) -> PooledInstances:
        return PooledInstances(
            kind,
            hosts,
            provider,
            clock=self._clock,
            fleet_of=self._fleet_of,
            closed_file=self._directory / f"closed-{kind.name}.json",
        )

    def drain(self, device: str) -> None:
        """Have the samples of an instance go on elsewhere, and close its spot device or engine.

        Raises:
            PlexError: `not_found` when there is none of that name; `disk_full`.
        """
        self._pool_of(device).close(device)

    def open(self, device: str) -> None:
        """Open a spot device or engine that `drain` closed.

        Raises:
            PlexError: `not_found` when there is none of that name; `bad_request` when it is not
                closed; `disk_full`.
        """
        found = self._pool_of(device)
        if device not in found.pool.closed:
            is_leaving = found.pool.slots[device].is_noticed
            was = "to be taken back by its provider" if is_leaving else "open"
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{found.kind.name} device {device} was not drained by `plexctl instance drain`: "
                f"it is {was}",
            )
        found.open(device)

    def _pool_of(self, device: str) -> PooledInstances:
        for one in self._pools:
            if device in one.pool.slots or device in one.pool.closed:
                return one
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"no spot device or serving engine {device!r}; `plexctl instance list` shows them. "
            "Dedicated instances leave with `plexctl node drain`",
        )

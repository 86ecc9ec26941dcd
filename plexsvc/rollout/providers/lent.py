"""Provider of lent capacity: guests of serving engines, each there while its lease is renewed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request, queue_full, unavailable
from plexsvc.ids import DeploymentId
from plexsvc.log import Log
from plexsvc.rollout.core.pool import SlotCame, SlotGone, SlotId, SlotNoticed
from plexsvc.rollout.providers.base import Tell

log = Log(__name__)

LOOK_US: Final = 100_000

MAX_LENT: Final = 1024
"""Engines that may be lent at once."""

MAX_LEASE_US: Final = 60_000_000
"""The longest lease: an engine that vanished is known to be gone after so long at most."""

GRACE_US: Final = 30_000_000
"""How long the samples of an engine that is withdrawn may take to go on elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a serving engine offers."""

    name: str
    address: str
    """Where managers reach its guest."""
    model: str
    """The directory of the guest's model, resolved."""
    price: float = 0.0
    """An hour."""
    owner: str = ""
    """The tenant whose engine it is; empty: the cluster's."""
    lend_to: frozenset[str] = frozenset()
    """Tenants whose jobs it takes; none: everybody's."""

    @property
    def slot_id(self) -> SlotId:
        """Return what the pool calls it."""
        return f"serving/{self.name}"

    def takes_jobs_of(self, tenant: str) -> bool:
        """Whether a tenant's jobs may use it."""
        return bool(tenant) and (not self.lend_to or tenant in self.lend_to)


@dataclass(slots=True)
class _LentProvider:
    offer: Offer
    until_us: int
    is_open: bool = True
    """False once it was withdrawn: then it is gone at `until_us`."""


class LentEngines:
    """Guests by slot; they are their own hosts, since nobody but their owners starts them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lent: dict[SlotId, _LentProvider] = {}

    def lend(self, offer: Offer, *, lease_us: int) -> None:
        """Take an offer, or renew it, for so long. Repeating it with 0 withdraws it.

        Raises:
            PlexError: `bad_request` for terms that cannot be, naming the field; `queue_full`.
        """
        before = self._lent.get(offer.slot_id)
        if lease_us == 0:
            if before is not None and before.is_open:
                log.info("serving engine withdrawn", slot=offer.slot_id)
                before.is_open, before.until_us = False, self._clock.monotonic_us() + GRACE_US
            return
        if before is None and len(self._lent) >= MAX_LENT:
            raise queue_full(
                f"{len(self._lent)} serving engines are lent already, the most that may be"
            )
        self._check(offer, before, lease_us=lease_us)
        if before is None or not before.is_open:
            log.info("serving engine lent", slot=offer.slot_id, address=offer.address)
        self._lent[offer.slot_id] = _LentProvider(offer, self._clock.monotonic_us() + lease_us)

    def slots(self) -> Mapping[SlotId, bool]:
        """Return the guests that are there, and whether each may be used."""
        now_us = self._clock.monotonic_us()
        for slot_id, lent in list(self._lent.items()):
            if lent.until_us <= now_us:
                log.info("lent engine gone", slot=slot_id, was_withdrawn=not lent.is_open)
                del self._lent[slot_id]
        return {slot_id: lent.is_open for slot_id, lent in self._lent.items()}

    async def start(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> str:
        """Return where a guest is reached; its owner started it.

        Raises:
            PlexError: `unavailable` when it is lent no more.
        """
        del number, deployment_id
        lent = self._lent.get(slot_id)
        if lent is None:
            raise unavailable(f"{slot_id} is lent no more")
        return lent.offer.address

    async def stop(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> None:
        """Leave the guest to its owner."""

    async def run(self, tell: Tell) -> None:
        """Tell what comes, is withdrawn and goes, until cancelled."""
        told: dict[SlotId, Offer | None] = {}
        while True:
            found = self.slots()
            for slot_id in told.keys() - found.keys():
                tell(SlotGone(slot_id=slot_id))
                del told[slot_id]
            for slot_id, is_open in found.items():
                offer = self._lent[slot_id].offer if is_open else None
                if slot_id in told and told[slot_id] == offer:
                    continue
                known, told[slot_id] = told.get(slot_id), offer
                if offer is None:
                    tell(SlotNoticed(slot_id=slot_id))
                    continue
                if known is not None and known.address != offer.address:
                    tell(SlotGone(slot_id=slot_id))  # another process of that name
                tell(
                    SlotCame(
                        slot_id=slot_id,
                        price=offer.price,
                        model=offer.model,
                        tenants=offer.lend_to,
                        is_passed_on=True,
                    )
                )
            await self._clock.sleep(LOOK_US)

    def _check(self, offer: Offer, before: _LentProvider | None, *, lease_us: int) -> None:
        if not 0 < lease_us <= MAX_LEASE_US:
            raise _refuse("lease_us", f"is {lease_us}; it is at most {MAX_LEASE_US}")
        if not offer.name or "/" in offer.name:
            raise _refuse("name", f"is {offer.name!r}; it is one plain name")
        if not (0 <= offer.price < float("inf")):
            raise _refuse("price", f"is {offer.price}; it is a number from 0")
        if before is not None and before.is_open and before.offer.model != offer.model:
            raise _refuse(
                "model",
                f"is {offer.model}, and {offer.slot_id} is lent with {before.offer.model} already; "
                "reclaim that one first, or give this one another name",
            )
        for lent in self._lent.values():
            other = lent.offer
            is_mutual = other.takes_jobs_of(offer.owner) and offer.takes_jobs_of(other.owner)
            if other.owner != offer.owner and is_mutual:
                raise _refuse(
                    "lend_to",
                    f"has {other.owner!r}, and its engine {other.slot_id} is lent to "
                    f"{offer.owner!r}: two tenants do not lend to each other; let each use its "
                    "own engine, or name other tenants",
                )


def _refuse(field: str, problem: str) -> PlexError:
    return bad_request(f"{field}: {problem}", field=field)

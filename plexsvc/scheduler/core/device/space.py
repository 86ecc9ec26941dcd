"""Room on devices: what lies there, and who could be parked so that another fits."""

from __future__ import annotations

from plexsvc.ids import WpgId
from plexsvc.residency import ON_DEVICE, Residency
from plexsvc.scheduler.core.state import Cluster, Wpg
from plexsvc.scheduler.core.vocabulary import Place, WpgState


def resident_bytes(cluster: Cluster, place: Place) -> int:
    """Return the bytes that WPGs hold, or are about to hold, on a device."""
    return sum(
        bytes_at(cluster.wpgs[wpg_id], place)
        for wpg_id in cluster.devices[place].wpgs
        if cluster.wpgs[wpg_id].residency in ON_DEVICE
    )


def bytes_at(wpg: Wpg, place: Place) -> int:
    """Return what a WPG's state takes on one of its devices."""
    return wpg.device_bytes[wpg.places.index(place)] if wpg.device_bytes else 0


def victims_of(cluster: Cluster, wpg: Wpg) -> tuple[WpgId, ...] | None:
    """Return whom to park so that `wpg` fits, or `None` if that cannot be done now."""
    if wpg.residency is Residency.DEVICE:
        return ()
    chosen: list[WpgId] = []
    for place in wpg.places:
        gained = sum(
            bytes_at(cluster.wpgs[v], place) for v in chosen if lives_on(cluster, v, place)
        )
        free = cluster.devices[place].bytes_total - resident_bytes(cluster, place) + gained
        for victim in _parkable(cluster, place, keep=wpg.wpg_id):
            if free >= bytes_at(wpg, place):
                break
            if victim.wpg_id not in chosen:
                chosen.append(victim.wpg_id)
                free += bytes_at(victim, place)
        if free < bytes_at(wpg, place):
            return None
    return tuple(chosen)


def lives_on(cluster: Cluster, wpg_id: WpgId, place: Place) -> bool:
    """Return whether a WPG has a rank on a device."""
    return place in cluster.wpgs[wpg_id].places


def _parkable(cluster: Cluster, place: Place, *, keep: WpgId) -> list[Wpg]:
    """Return idle residents of a device, least recently used first."""
    residents = [cluster.wpgs[w] for w in cluster.devices[place].wpgs if w != keep]
    idle = [
        wpg
        for wpg in residents
        if wpg.state is WpgState.READY
        and wpg.residency is Residency.DEVICE
        and wpg.switch is None
        and not wpg.is_rollout
        and not wpg.running
    ]
    return sorted(idle, key=lambda wpg: (wpg.last_used_us, wpg.wpg_id))

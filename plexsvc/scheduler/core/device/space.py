"""Room on devices: what lies there, and who could be parked so that another fits."""

from __future__ import annotations

from plexsvc.ids import WpgId
from plexsvc.residency import ON_DEVICE, Residency
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.vocabulary import Place, WpgState


def enter(devices: Devices, wpg: Wpg) -> None:
    """Let a new WPG live on its devices."""
    for place in wpg.places:
        devices.at[place].wpgs.append(wpg.wpg_id)
    _regroup(devices)


def leave(devices: Devices, wpg: Wpg) -> tuple[WpgId, ...]:
    """Take a WPG that is gone off its devices; return the group it was in."""
    neighbours = devices.groups.pop(wpg.wpg_id)
    for place in wpg.places:
        devices.at[place].wpgs.remove(wpg.wpg_id)
    _regroup(devices)
    return neighbours


def resident_bytes(devices: Devices, place: Place) -> int:
    """Return the bytes that WPGs hold, or are about to hold, on a device."""
    return sum(
        bytes_at(devices.wpgs[wpg_id], place)
        for wpg_id in devices.at[place].wpgs
        if devices.wpgs[wpg_id].residency in ON_DEVICE
    )


def bytes_at(wpg: Wpg, place: Place) -> int:
    """Return what a WPG's state takes on one of its devices."""
    return wpg.device_bytes[wpg.places.index(place)] if wpg.device_bytes else 0


def victims_of(devices: Devices, wpg: Wpg) -> tuple[WpgId, ...] | None:
    """Return whom to park so that `wpg` fits, or `None` if that cannot be done now."""
    if wpg.residency is Residency.DEVICE:
        return ()
    chosen: list[WpgId] = []
    for place in wpg.places:
        gained = sum(
            bytes_at(devices.wpgs[v], place) for v in chosen if lives_on(devices, v, place)
        )
        free = devices.at[place].bytes_total - resident_bytes(devices, place) + gained
        for victim in _parkable(devices, place, keep=wpg.wpg_id):
            if free >= bytes_at(wpg, place):
                break
            if victim.wpg_id not in chosen:
                chosen.append(victim.wpg_id)
                free += bytes_at(victim, place)
        if free < bytes_at(wpg, place):
            return None
    return tuple(chosen)


def lives_on(devices: Devices, wpg_id: WpgId, place: Place) -> bool:
    """Return whether a WPG has a rank on a device."""
    return place in devices.wpgs[wpg_id].places


def _parkable(devices: Devices, place: Place, *, keep: WpgId) -> list[Wpg]:
    """Return idle residents of a device, least recently used first."""
    residents = [devices.wpgs[w] for w in devices.at[place].wpgs if w != keep]
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


def _regroup(devices: Devices) -> None:
    """Find the sets of WPGs that share devices, directly or through others."""
    devices.groups = {}
    for wpg_id in devices.wpgs:
        if wpg_id in devices.groups:
            continue
        members, frontier = {wpg_id: None}, [wpg_id]
        while frontier:
            for place in devices.wpgs[frontier.pop()].places:
                for other in devices.at[place].wpgs:
                    if other not in members:
                        members[other] = None
                        frontier.append(other)
        group = tuple(members)
        devices.groups.update(dict.fromkeys(group, group))

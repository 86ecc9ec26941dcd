"""Room on devices: what lies there, and who could be parked so that another fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from plexsvc.ids import WpgId
from plexsvc.residency import ON_DEVICE, Residency
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.state import Device, Wpg
from plexsvc.scheduler.core.vocabulary import WpgState


def enter(devices: Devices, wpg: Wpg) -> None:
    """Let a new WPG live on its devices."""
    wpg.devices = tuple(devices.at[place] for place in wpg.places)
    for rank, device in enumerate(wpg.devices):
        device.ranks[wpg.wpg_id] = rank
    neighbours = {other for device in wpg.devices for other in device.ranks}
    _regroup(devices, {w for other in neighbours for w in devices.groups.get(other, (other,))})


def leave(devices: Devices, wpg: Wpg) -> tuple[WpgId, ...]:
    """Take a WPG that is gone off its devices; return the group it was in."""
    neighbours = devices.groups.pop(wpg.wpg_id)
    for device in wpg.devices:
        del device.ranks[wpg.wpg_id]
    _regroup(devices, [other for other in neighbours if other != wpg.wpg_id])
    return neighbours


def resident_bytes(
    devices: Devices,
    device: Device,
    *,
    without: Collection[WpgId] = (),
    models: Mapping[str, int] | None = None,
    pass_bytes: int = 0,
) -> int:
    """Return the bytes that WPGs hold, or are about to hold, on a device.

    `without` are some that leave it; their processes stay. `models` are there, too. There is room
    for one pass: the largest of theirs and of `pass_bytes`.
    """
    found, there, wpgs = 0, dict(models or {}), devices.wpgs
    for wpg_id, rank in device.ranks.items():
        wpg = wpgs[wpg_id]
        is_there = wpg.residency in ON_DEVICE and wpg_id not in without
        if is_there and wpg.device_bytes and rank not in wpg.left:
            found += wpg.device_bytes[rank]
            if wpg.models:
                there |= _model_of(wpg, rank)
            if wpg.pass_bytes:
                pass_bytes = max(pass_bytes, wpg.pass_bytes[rank])
        if wpg.parked_bytes:
            found += wpg.parked_bytes[rank]
    return found + pass_bytes + (sum(there.values()) if there else 0)


def bytes_alone(wpg: Wpg, device: Device) -> int:
    """Return what a WPG takes on one of its devices where nobody else is."""
    rank = device.ranks[wpg.wpg_id]
    found = wpg.device_bytes[rank] if wpg.device_bytes else 0
    found += sum(_model_of(wpg, rank).values()) + pass_of(wpg, device)
    return found + (wpg.parked_bytes[rank] if wpg.parked_bytes else 0)


def pass_of(wpg: Wpg, device: Device) -> int:
    """Return what a pass of a WPG takes on one of its devices."""
    return wpg.pass_bytes[device.ranks[wpg.wpg_id]] if wpg.pass_bytes else 0


def _model_of(wpg: Wpg, rank: int) -> dict[str, int]:
    """Return the bytes of the frozen model that a rank reads by its name, if there is one."""
    return {wpg.models[rank]: wpg.model_bytes[rank]} if wpg.models else {}


def victims_of(devices: Devices, wpg: Wpg) -> tuple[WpgId, ...] | None:
    """Return whom to park so that `wpg` fits, or `None` if that cannot be done now.

    `O(devices of wpg * who lives on one)`.
    """
    if wpg.residency is Residency.DEVICE:
        return ()
    chosen: dict[WpgId, None] = {}
    idle = _parkable(devices, wpg)
    for device in wpg.devices:
        lacking = _lacking(devices, wpg, device, without=chosen)
        for victim in idle:
            if lacking <= 0:
                break
            if victim.wpg_id in device.ranks and victim.wpg_id not in chosen:
                chosen[victim.wpg_id] = None
                lacking = _lacking(devices, wpg, device, without=chosen)
        if lacking > 0:
            return None
    return tuple(chosen)


def _lacking(devices: Devices, wpg: Wpg, device: Device, *, without: Collection[WpgId]) -> int:
    """Return how many bytes a device lacks for a WPG beside those that stay; below 0: has left."""
    rank = device.ranks[wpg.wpg_id]
    models = _model_of(wpg, rank) if wpg.models else None
    left = resident_bytes(
        devices, device, without=without, models=models, pass_bytes=pass_of(wpg, device)
    )
    return left + (wpg.device_bytes[rank] if wpg.device_bytes else 0) - device.bytes_total


def pinners(devices: Devices, wpg: Wpg) -> list[Wpg]:
    """Return whose state managed work keeps on devices that `wpg` needs for its own."""
    return [
        other
        for other in map(devices.wpgs.__getitem__, devices.groups[wpg.wpg_id])
        if other.residency is Residency.DEVICE
        and other is not wpg
        and other.running
        and not any(operation.needs_device for operation in other.running.values())
        and any(other.wpg_id in device.ranks for device in wpg.devices)
    ]


def _parkable(devices: Devices, wpg: Wpg) -> list[Wpg]:
    """Return the idle residents of a WPG's group, least recently used first."""
    idle = [
        other
        for other in map(devices.wpgs.__getitem__, devices.groups[wpg.wpg_id])
        if other.residency is Residency.DEVICE
        and other is not wpg
        and other.state is WpgState.READY
        and other.switch is None
        and not other.is_lost
        and (not other.is_rollout or may_sleep(devices, other))
        and not other.running
    ]
    return sorted(idle, key=lambda other: (other.last_used_us, other.wpg_id))


def may_sleep(devices: Devices, wpg: Wpg) -> bool:
    """Return whether instances share their devices, and none of them is just starting."""
    homeless = devices.placement.homeless
    starting = [r for r in wpg.absent if r not in wpg.asleep and (wpg.wpg_id, r) not in homeless]
    return wpg.is_shared and not starting


def _regroup(devices: Devices, among: Iterable[WpgId]) -> None:
    """Find anew which of `among` share devices, directly or through others.

    Whoever shares devices with one of them is one of them.
    """
    # By age, which follows from events alone: by name, the tenth comes before the second.
    left = dict.fromkeys(sorted(among, key=lambda wpg_id: devices.wpgs[wpg_id].number))
    while left:
        first = next(iter(left))
        members, frontier = {first: None}, [first]
        while frontier:
            for device in devices.wpgs[frontier.pop()].devices:
                for other in device.ranks:
                    if other not in members:
                        members[other] = None
                        frontier.append(other)
        group = tuple(members)
        for wpg_id in group:
            del left[wpg_id]
            devices.groups[wpg_id] = group

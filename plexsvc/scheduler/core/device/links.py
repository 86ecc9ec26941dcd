"""Links between the devices of a host and its memory: what moves at once shares one.

Theory of operation. A switch that ran alone tells what it costs. Of one that ran beside others on
one of its hosts, the time is that of both, so it tells how much of the link one takes: `n` at once
that take `r` times as long as alone take a share of `r / n` each. The mean of these shares predicts
how long a switch lasts that is under way: `n` times the share as long as alone, if that is more
than one. Prefetches are switches; copies for versions, saves and relocations use the link, too.

The order of operations goes by what a switch costs alone: charged with what moves now, whoever has
to switch on a busy host would be put last again and again. Placement goes by the mean of all
switches, so a place where they meet is as dear as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plexsvc.ids import NodeId, WpgId
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device.learning import smoothed
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.state import Switch, Wpg
from plexsvc.scheduler.core.vocabulary import RelocationStage


def mark(devices: Devices, wpg: Wpg, *, to: Wpg | None = None) -> None:
    """Note that a WPG's state begins to move, for a switch to `to`, or is copied.

    `O(hosts of it * what moves)`.
    """
    if not wpg.hosts:
        wpg.hosts = dict.fromkeys(_host_of(devices, place.node_id) for place in wpg.places)
    devices.flows[wpg.wpg_id] = wpg.wpg_id if to is None else to.wpg_id
    under_way = _under_way(devices)
    for host in wpg.hosts if len(under_way) > 1 else ():
        found = _at(under_way, host)
        for switch in (devices.wpgs[wpg_id].switch for wpg_id in found):
            if switch is not None:
                switch.most_at_once = max(switch.most_at_once, len(found))


def learn(devices: Devices, wpg: Wpg, switch: Switch, *, cost_us: int) -> None:
    """Learn from a switch that is over what it costs alone, or how much of its link it takes."""
    wpg.switch_mean_us = smoothed(wpg.switch_mean_us, cost_us)
    at_once = switch.most_at_once
    if at_once == 1:
        wpg.switch_cost_us = smoothed(wpg.switch_cost_us, cost_us)
    elif wpg.switch_cost_us:
        share_ppm = cost_us * PPM // (wpg.switch_cost_us * at_once)
        for host in wpg.hosts:
            known = devices.link_share_ppm.get(host)
            devices.link_share_ppm[host] = smoothed(known, share_ppm)


def stretched(devices: Devices, wpg: Wpg, alone_us: int) -> int:
    """Return how long a switch that takes `alone_us` alone takes beside what moves now."""
    shares = {h: devices.link_share_ppm[h] for h in wpg.hosts if h in devices.link_share_ppm}
    under_way = _under_way(devices) if shares else []
    counts = [(len({*_at(under_way, host), wpg.wpg_id}), ppm) for host, ppm in shares.items()]
    longest_ppm = max((at_once * ppm for at_once, ppm in counts), default=PPM)
    return alone_us * max(PPM, longest_ppm) // PPM


def _host_of(devices: Devices, node_id: NodeId) -> str:
    """Return whose link a node's devices use; a node says so when it joins, else it is its own."""
    node = devices.placement.nodes.get(node_id)
    return node_id if node is None else node.host or node_id


def _under_way(devices: Devices) -> list[tuple[WpgId, Mapping[str, None]]]:
    """Return what moves now: whose switch or copy it is, and on which hosts."""
    for wpg_id in [w for w in devices.flows if not _is_moving(devices, w)]:
        del devices.flows[wpg_id]
    flows = devices.flows.items()
    return [(owner, devices.wpgs[w].hosts) for w, owner in flows if owner in devices.wpgs]


def _at(under_way: Iterable[tuple[WpgId, Mapping[str, None]]], host: str) -> set[WpgId]:
    return {wpg_id for wpg_id, hosts in under_way if host in hosts}


def _is_moving(devices: Devices, wpg_id: WpgId) -> bool:
    wpg = devices.wpgs.get(wpg_id)
    return wpg is not None and (wpg.move_id is not None or _is_copied(devices, wpg))


def _is_copied(devices: Devices, wpg: Wpg) -> bool:
    """Return whether state managers copy a WPG's state."""
    if any(not operation.needs_device for operation in wpg.running.values()):
        return True
    relocation = devices.deployments[wpg.deployment_id].relocation
    is_carried = relocation is not None and relocation.stage is RelocationStage.CARRYING
    return is_carried and devices.is_current(wpg)

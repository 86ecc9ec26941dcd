"""The contest for devices: which operation is next, whose state is expected next, how long to wait.

The rules are those of `planning/runtime_rules.py`: highest response ratio with setup (HRRS, PlexRL
§4.4), bursts kept together, slack used, starvation bounded. They are asked after every event, since
operations of a group may use different devices. Nothing here changes any state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from operator import itemgetter
from typing import Final

from plexsvc.ids import ResidentId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import learning
from plexsvc.scheduler.core.planning.profile import PPM, Mode, Profile
from plexsvc.scheduler.core.planning.runtime_rules import Entry, Order, choose, has_starved
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import Operation, Pattern, Wpg
from plexsvc.scheduler.core.vocabulary import WpgState

GIB: Final = 1 << 30

CONFIDENCE_PPM: Final = 500_000
"""How far the next arrival must lead others to be prefetched, in the spread of the two."""

SLACK_CONFIDENCE_PPM: Final = 2_000_000
"""The same where a wait for a switch costs the next one nothing."""

LINGER_GRACE_US: Final = 2_000
"""How much later than expected a burst's next operation may come and still find its device."""


def entries(devices: Devices, waiting: Mapping[WpgId, Operation]) -> list[Entry]:
    """Return what `in_turn` compares of each waiting operation; a WPG stands for its resident.

    One that waits alone is compared to nobody. Keeping a burst together only helps where its end
    saves a switch.
    """
    found = [_entry(devices, devices.wpgs[w], operation) for w, operation in waiting.items()]
    for entry in found if len(found) > 1 else ():
        wpg = devices.wpgs[WpgId(entry.resident_id)]
        _weigh(devices, wpg, entry)
        if any(other.setup_us for other in found if other is not entry):
            entry.continues_burst = _continues_burst(devices, wpg)
            entry.has_room = entry.continues_burst and _has_room(devices, wpg)
    return found


def in_turn(entries: Sequence[Entry], *, order: Order, now_us: int) -> list[Entry]:
    """Return `entries`, the one to run first ahead. `O(n^2)`."""
    left = list(entries)
    ordered: list[Entry] = []
    while len(left) > 1:
        chosen = choose(left, order=order, now_us=now_us)
        ordered.append(chosen)
        left.remove(chosen)
    return ordered + left


def awaited_until(devices: Devices, victims: tuple[WpgId, ...], *, entry: Entry) -> int:
    """Return until when an operation leaves the device to a victim whose burst goes on.

    As long as the burst's next operation would go first: else the burst is torn just before it.
    A rollout does not wait for the training on whose devices it is: it is what comes next.
    """
    if has_starved(entry, now_us=devices.now_us):
        return 0
    until_us, wpg = 0, devices.wpgs[WpgId(entry.resident_id)]
    for victim_id in victims:
        victim = devices.wpgs[victim_id]
        if wpg.is_rollout and victim.job_id == wpg.job_id:
            continue
        pattern = devices.deployments[victim.deployment_id].pattern
        if pattern.last_end_us is None or pattern.gap_us is None:
            continue
        kept_us = linger_us(gap_us=pattern.gap_us, switch_us=entry.setup_us)
        until_us = max(until_us, pattern.last_end_us + kept_us if kept_us else 0)
    return until_us


def linger_us(*, gap_us: int, switch_us: int) -> int:
    """Return how long a device is kept for the next operation of a burst, after the last one.

    Not longer than the switch that waiting saves: at worst a wait of twice the switch, as in
    anticipatory scheduling (Iyer and Druschel, SOSP 2001). Zero for a gap that is not worth it.

    >>> linger_us(gap_us=1_000, switch_us=50_000)
    4000
    >>> linger_us(gap_us=60_000, switch_us=50_000)
    0
    """
    return 0 if gap_us > switch_us else min(2 * gap_us + LINGER_GRACE_US, switch_us)


def expected_next(devices: Devices, members: tuple[WpgId, ...]) -> Wpg | None:
    """Return the parked WPG whose operation is expected before all others', if that is clear."""
    expected, now_us = [], devices.now_us
    for wpg_id in members:
        wpg = devices.wpgs[wpg_id]
        deployment = devices.deployments[wpg.deployment_id]
        at_us = deployment.pattern.expected_us
        is_still = wpg.switch is None and wpg.move_id is None
        # A step on the host works on the state where it is parked.
        is_still &= not any(operation.is_on_host for operation in wpg.running.values())
        if at_us is None or wpg.state is not WpgState.READY or not is_still:
            continue
        if deployment.wpg_id != wpg_id or deployment.is_held:
            continue
        if wpg.retry_us > now_us or devices.jobs[wpg.job_id].ending is not None:
            continue
        if deployment.pattern.cycles.profile is not None:
            expected.append((at_us, wpg_id, deployment.pattern.cycles.profile))
    if not expected:
        return None
    expected.sort(key=itemgetter(0, 1))
    wpg = devices.wpgs[expected[0][1]]
    is_worth = wpg.residency is Residency.HOST and switch_us(devices, wpg) > 0
    return wpg if is_worth and is_clear(expected) else None


def is_clear(expected: Sequence[tuple[int, WpgId, Profile]]) -> bool:
    """Return whether the first of some arrivals, given in order with their cycles, is ahead of all.

    It must lead every other by `CONFIDENCE_PPM` of the spread of the two together; that of a job
    with slack, which has little to gain, by `SLACK_CONFIDENCE_PPM`.
    """
    first_us, _, profile = expected[0]
    needed_ppm = SLACK_CONFIDENCE_PPM if profile.slack_us > 0 else CONFIDENCE_PPM
    for at_us, _, other in expected[1:]:
        both_us = isqrt(profile.spread_us**2 + other.spread_us**2)
        if (at_us - first_us) * PPM // max(1, both_us) < needed_ppm:
            return False
    return True


def following(devices: Devices, wpg: Wpg) -> tuple[WpgId, ...]:
    """Return whose state is needed after that of `wpg`: those that wait, then as expected.

    Nobody, where at most one is known: what was parked longest ago comes next anyway.
    """
    due: list[tuple[bool, int, WpgId]] = []
    for wpg_id in devices.groups[wpg.wpg_id]:
        other = devices.wpgs[wpg_id]
        deployment = devices.deployments[other.deployment_id]
        if other is wpg or other.is_rollout or other.residency is not Residency.HOST:
            continue
        if deployment.pending:
            due.append((False, other.last_used_us, wpg_id))
        elif (at_us := deployment.pattern.expected_us) is not None:
            due.append((True, at_us, wpg_id))
    return tuple(wpg_id for _, _, wpg_id in sorted(due)) if len(due) > 1 else ()


def is_sooner(devices: Devices, victims: tuple[WpgId, ...], *, than: Wpg) -> bool:
    """Return whether some victim's next operation is expected before that of `than`."""
    limit_us = devices.deployments[than.deployment_id].pattern.expected_us
    assert limit_us is not None, than
    for victim_id in victims:
        deployment = devices.deployments[devices.wpgs[victim_id].deployment_id]
        at_us = deployment.pattern.expected_us
        if deployment.pending or (at_us is not None and at_us < limit_us):
            return True
    return False


def switch_us(devices: Devices, wpg: Wpg) -> int:
    """Return what a context switch to `wpg` costs; before the first, by the prior for its bytes."""
    if wpg.switch_cost_us is not None:
        return wpg.switch_cost_us
    return max(wpg.device_bytes, default=0) * devices.limits.prior_switch_us_per_gib // GIB


def _entry(devices: Devices, wpg: Wpg, operation: Operation) -> Entry:
    deployment = devices.deployments[wpg.deployment_id]
    return Entry(
        resident_id=ResidentId(wpg.wpg_id),
        since_us=devices.now_us if operation.eligible_us is None else operation.eligible_us,
        service_us=learning.predicted_us(deployment, operation),
        setup_us=0 if wpg.residency is Residency.DEVICE else switch_us(devices, wpg),
    )


def _weigh(devices: Devices, wpg: Wpg, entry: Entry) -> None:
    """Note what an operation is compared to others by."""
    pattern = devices.deployments[wpg.deployment_id].pattern
    if not devices.is_current(wpg):
        pattern = Pattern()
    profile = pattern.cycles.profile
    cost_us = switch_us(devices, wpg)
    is_serial = profile is None or profile.mode is Mode.SYNC  # it generates nothing meanwhile
    slack_us = 0
    if profile is not None:
        slack_us = profile.period_us if profile.mode is Mode.ASYNC1 else profile.busy_us
    is_under_way = _is_going_on(pattern, max_gap_us=cost_us) and not pattern.cycles.is_last_of_cycle
    entry.burst_us = max(entry.service_us, pattern.cycles.burst_us(max_gap_us=cost_us))
    entry.deadline_us = (pattern.arrived_us if is_under_way else entry.since_us) + slack_us
    job = devices.jobs[wpg.job_id]
    entry.is_critical = is_serial or not lanes.rolls_out(devices.queues, job)


def _continues_burst(devices: Devices, wpg: Wpg) -> bool:
    """Return whether a WPG's next operation goes on with what it just did, known from its cycle."""
    is_last = all(device.last_holder == wpg.wpg_id for device in wpg.devices)
    if wpg.residency is not Residency.DEVICE or not is_last:
        return False
    pattern = devices.deployments[wpg.deployment_id].pattern
    return _is_going_on(pattern, max_gap_us=switch_us(devices, wpg))


def _has_room(devices: Devices, wpg: Wpg) -> bool:
    """Return whether all who share devices with a WPG leave some time, with a switch a cycle."""
    load_ppm = 0
    for other_id in devices.groups[wpg.wpg_id]:
        other = devices.wpgs[other_id]
        profile = devices.deployments[other.deployment_id].pattern.cycles.profile
        if profile is not None:
            busy_us = profile.busy_us + switch_us(devices, other)
            load_ppm += busy_us * PPM // profile.period_us
    return load_ppm < PPM


def _is_going_on(pattern: Pattern, *, max_gap_us: int) -> bool:
    return pattern.cycles.profile is not None and (
        pattern.gap_us is not None and pattern.gap_us <= max_gap_us
    )

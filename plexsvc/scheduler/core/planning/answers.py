"""Answers of planning that change nothing: why a job waits, why it stays.

Each asks what placement would ask, so an answer and the decision after it agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.memory import size
from plexsvc.scheduler.core.planning.places import NO_ROOM, NOBODY, Barred
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand

TOLD_HOSTS: Final = 3
"""Hosts without room of which an answer says what is booked."""


def why(planner: Planner, resident_id: ResidentId, *, now_us: int) -> str:
    """Say why a waiting job waits, and what is kept for it."""
    demand = planner.waiting[resident_id]
    asked = f"{demand.num_units} {planner.noun}(s)"
    facts = reasons_for(planner, demand, now_us=now_us)
    kept = planner.kept.reservations.get(resident_id)
    if kept is not None:
        due_s = max(0, kept.due_us - now_us) // SECOND_US
        facts.append(f"{', '.join(kept.units)} are kept for it, due in {due_s} s")
    return f"{resident_id} waits for {asked}: " + "; ".join(facts)


def why_stays(planner: Planner, resident_id: ResidentId, *, now_us: int) -> str:
    """Say what a placed job finds elsewhere: why it is not rehomed."""
    resident = planner.board.resident(resident_id)
    facts = reasons_for(
        planner, resident.demand, barred=resident.units, without=resident_id, now_us=now_us
    )
    return "; ".join(facts)


def reasons_for(
    planner: Planner,
    demand: Demand,
    *,
    barred: Barred = (),
    without: ResidentId = NOBODY,
    now_us: int,
) -> list[str]:
    """Say place by place why a job is not there; `without` is itself, if it is placed."""
    search, kept = planner.search, planner.kept.barred(demand, now_us=now_us)
    barred = {*barred, *kept}
    board, num_units = planner.board, demand.num_units
    is_whole = search.has_whole(demand, barred=barred)
    groups = [
        group
        for group in board.groups.values()
        if (group.size == num_units if is_whole else group.size > num_units)
    ]
    facts = [f"{len(planner.board.idle)} of {len(planner.board.rooms)} {planner.noun}s are idle"]
    if kept:
        jobs = ", ".join(planner.kept.reservations)
        facts.append(f"{len(kept)} are kept for {jobs}, which goes before it")
    counts: dict[str, int] = {}
    full = dict.fromkeys(board.memory.without_room(list(board.idle), demand))
    for spot in search.joining(demand, groups, barred=barred):
        why_not = search.refusal(demand, spot, without=without, now_us=now_us)
        reason = why_not or "may be joined"
        counts[reason] = counts.get(reason, 0) + 1
        if reason == NO_ROOM:
            full.update(dict.fromkeys(board.memory.without_room(spot.units, demand)))
    which = "of its size" if is_whole else "larger than it"
    facts.extend(f"{count} groups {which}: {reason}" for reason, count in counts.items())
    facts.extend(_booked(planner, full, demand))
    return facts


def _booked(planner: Planner, full: Iterable[UnitId], demand: Demand) -> list[str]:
    """Say what is booked on hosts that lack room for a job; of many, on a few."""
    memory, rooms = planner.board.memory, planner.board.rooms
    by_host = {rooms[unit_id].host: unit_id for unit_id in full}
    told = [memory.told(unit_id) for _, unit_id in sorted(by_host.items())[:TOLD_HOSTS]]
    needed = f"it needs {size(demand.host_bytes)} there for each {planner.noun}"
    return [*told, needed] if told else []

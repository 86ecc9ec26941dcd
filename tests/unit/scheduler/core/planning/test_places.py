"""Micro-shifts: minimal and clean where there is one, least overlap where there is none."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.places import least_overlap
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.structures.footprint import Footprint
from plexsvc.scheduler.core.structures.ring import Ring, divisors_of

SIZE = 120


def profile(period: int, offset: int, duration: int) -> Profile:
    segment = Segment(
        phase="update", offset_us=offset * SECOND_US, duration_us=duration * SECOND_US
    )
    return Profile(period_us=period * SECOND_US, segments=(segment,))


def group_with(jobs: list[tuple[Profile, int]]) -> tuple[Board, Group]:
    board = Board([UnitRoom(unit_id=UnitId("n0"))], ring=Ring(SIZE))
    group = board.open_group([UnitId("n0")])
    for at, (cycle, anchor) in enumerate(jobs):
        demand = Demand(resident_id=ResidentId(f"j{at}"), num_units=1, profile=cycle)
        board.commit(group, demand, anchor_slot=anchor, shift_slots=0)
    return board, group


def slots_of(cells: Footprint) -> set[int]:
    return {s for a, b in zip(cells.starts, cells.ends, strict=True) for s in range(a, b)}


CYCLES = st.builds(
    lambda period, offset, duration: profile(period, offset % period, min(duration, period)),
    st.sampled_from([d for d in divisors_of(SIZE) if d >= 4]),
    st.integers(0, 30),
    st.integers(1, 12),
)


@settings(deadline=None)
@given(st.lists(st.tuples(CYCLES, st.integers(0, SIZE)), max_size=3), CYCLES, st.integers(0, 500))
def test_the_fit_is_the_best_of_all_shifts(
    residents: list[tuple[Profile, int]], new: Profile, anchor: int
) -> None:
    board, group = group_with(residents)
    there = list(group.residents.values())
    taken = {slot for one in there for slot in slots_of(board.cells_of(one))}
    fit = least_overlap(board, there, new, anchor_slot=anchor)
    overlaps = []
    for shift in range(board.period_slots(new)):
        cells = board.cells(new, anchor_slot=anchor + shift)
        overlaps.append(len(slots_of(cells) & taken))
    assert fit.shift_slots == overlaps.index(min(overlaps))
    assert (fit.overlap_ppm == 0) == (min(overlaps) == 0)


def test_a_job_slides_behind_the_resident_by_as_little_as_possible() -> None:
    board, group = group_with([(profile(60, 0, 20), 0)])
    there = list(group.residents.values())
    fit = least_overlap(board, there, profile(60, 0, 10), anchor_slot=5)
    assert (fit.shift_slots, fit.overlap_ppm) == (15, 0)

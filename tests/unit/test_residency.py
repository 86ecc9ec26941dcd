"""The table of residencies: what a move passes through, and what only one node may see."""

from __future__ import annotations

import pytest

from plexsvc.residency import (
    MOVING,
    NODE_TRANSITIONS,
    ON_DEVICE,
    TRANSITIONS,
    Residency,
    ResidencyTrigger,
)


@pytest.mark.parametrize("residency", sorted(MOVING))
def test_a_move_ends_on_another_tier_or_where_it_began(residency: Residency) -> None:
    before = TRANSITIONS[residency, ResidencyTrigger.MOVE_FAILED]
    done = {
        trigger: after
        for (state, trigger), after in TRANSITIONS.items()
        if state is residency and trigger is not ResidencyTrigger.MOVE_FAILED
    }
    assert len(done) == 1
    assert {before, *done.values()} == {Residency.DEVICE, Residency.HOST}


def test_only_a_parked_or_missing_state_counts_against_no_device() -> None:
    assert set(Residency) - ON_DEVICE == {Residency.NONE, Residency.HOST}
    assert MOVING < ON_DEVICE


def test_ranks_that_come_and_go_are_a_matter_of_their_node_alone() -> None:
    assert TRANSITIONS.items() <= NODE_TRANSITIONS.items()
    extra = {trigger for state, trigger in NODE_TRANSITIONS.keys() - TRANSITIONS.keys()}
    assert {ResidencyTrigger.ALLOCATED, ResidencyTrigger.EMPTIED} <= extra
    assert (Residency.NONE, ResidencyTrigger.OFFLOAD_ORDERED) not in TRANSITIONS

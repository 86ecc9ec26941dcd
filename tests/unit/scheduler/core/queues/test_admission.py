"""The cost of a submission: the same behind a long line as behind a short one."""

from __future__ import annotations

from functools import partial
from statistics import median

import pytest

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.limits import Limits
from tests.fakes.fake_world import FakeWorld, no_room
from tests.rigs.counting import lines_run


def test_a_submission_costs_the_same_however_many_are_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FakeWorld(limits=Limits(max_pending_per_wpg=1000))
    world.join(train=1)
    world.bring_up("a")
    monkeypatch.setattr("tests.fakes.fake_world.core_invariants.check", lambda _: None)
    costs = [lines_run(partial(world.submit, f"a{seq}", job="a", seq=seq)) for seq in range(1, 401)]
    assert median(costs[300:]) <= median(costs[2:10]), costs


def test_a_number_refused_for_now_is_missing_again() -> None:
    world = FakeWorld(limits=Limits(max_move_tries=1))
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    for seq in (1, 2, 3):
        world.submit(f"a{seq}", job="a", seq=seq)
    deployment = world.core.view.deployments[DeploymentId("a/actor")]
    assert deployment.gap_seq is None
    world.report(next(o for o in world.orders if isinstance(o, MoveState)), fault=no_room())
    assert deployment.gap_seq == 1
    world.submit("again", job="a", seq=1)
    assert deployment.gap_seq is None

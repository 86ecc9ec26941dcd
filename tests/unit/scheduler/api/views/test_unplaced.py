"""Why deployments wait for a place, in words."""

from __future__ import annotations

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.api.views import unplaced
from plexsvc.scheduler.core.limits import Limits
from tests.fakes.fake_world import FakeWorld


def test_what_waits_says_in_one_word_what_it_is_short_of() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    world.join("n0", train=1)
    world.bring_up("a")
    world.bring_up("b")
    view = world.core.view
    assert unplaced.short_of(view, view.deployments[DeploymentId("b/actor")]) == "devices"

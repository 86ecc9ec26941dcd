"""What a reader outside the core sees, and that asking changes nothing."""

from __future__ import annotations

from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.api.views.story import explain, explain_job
from plexsvc.scheduler.core.vocabulary import Place
from tests.fakes.fake_world import FakeWorld, op_id, wanted

ACTOR = DeploymentId("a/actor")
N0 = Place(node_id=NodeId("n0"), device=0)


def test_a_view_shows_the_cluster_as_it_is_now() -> None:
    world = FakeWorld()
    view = world.core.view
    assert (dict(view.jobs), dict(view.devices)) == ({}, {})
    world.join("n0", train=1)
    world.bring_up("a")
    deployment = view.deployments[ACTOR]
    wpg = view.wpg_of(deployment)
    assert wpg is not None
    assert view.is_current(wpg)
    assert list(view.devices[N0].ranks) == [wpg.wpg_id]
    assert view.resident_bytes(N0) == sum(wpg.device_bytes)
    assert view.planners["train"].board.group_of.keys() == {deployment.resident_id}
    world.end("a")
    world.drain()
    assert JobId("a") in view.ended


def test_asking_changes_nothing() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.bring_up("a")
    world.submit("op", job="a", seq=1)
    view = world.core.view
    before = repr((view.deployments, view.wpgs, view.operations, view.devices))
    explain(view, op_id("op"), now_us=world.now_us)
    explain_job(view, JobId("a"), now_us=world.now_us)
    view.why_stays(view.deployments[ACTOR])
    view.has_gang(kind="train", num_devices=8)
    assert view.never([wanted("a", "judge", rollout=True)]) is not None
    assert view.planners.keys() == {"train"}
    assert repr((view.deployments, view.wpgs, view.operations, view.devices)) == before
    assert world.core.cluster.turn.dirty == {}

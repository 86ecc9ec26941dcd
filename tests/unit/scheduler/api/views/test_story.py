"""Explanations come from the record and name what is waited for."""

from __future__ import annotations

import pytest

from plexsvc.ids import JobId, NodeId, WpgId
from plexsvc.scheduler.api.views.story import explain, explain_job
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.device import contest
from plexsvc.scheduler.core.events import NodeCordoned
from plexsvc.scheduler.core.life import jobs
from plexsvc.scheduler.core.vocabulary import OperationState
from tests.fakes.fake_world import FakeWorld, no_room, op_id


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    return world


def told(world: FakeWorld, name: str) -> str:
    story = explain(world.core.view, op_id(name), now_us=world.now_us)
    assert story is not None
    return story.text


def test_it_names_who_holds_the_device(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1)
    assert "held by wpg-1-2 of job b since 1.0 ms" in told(world, "a1")
    assert "runs on wpg-1-2" in told(world, "b1")


def test_it_tells_of_a_switch_under_way(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    assert "context switch that began 0.0 ms ago on n0:0" in told(world, "a1")
    world.report(next(o for o in world.orders if isinstance(o, MoveState)), fault=no_room())
    assert "found no room" in told(world, "a1")


def test_it_names_a_missing_number_and_those_ahead(world: FakeWorld) -> None:
    world.submit("b2", job="b", seq=2)
    assert "waits for seq 1" in told(world, "b2")
    world.submit("b1", job="b", seq=1)
    world.submit("b3", job="b", seq=3)
    assert "of its own deployment to end" in told(world, "b2")
    assert "seq 2 of its deployment comes first" in told(world, "b3")


def test_it_names_payload_and_dependencies(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1, is_staged=False)
    assert "waits for its payload" in told(world, "b1")
    world.submit("a1", job="a", seq=1, after=("ghost",))
    assert "not submitted yet" in told(world, "a1")


def test_it_tells_how_an_operation_ended(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.die(WpgId("wpg-1-2"))
    story = explain(world.core.view, op_id("b1"), now_us=world.now_us)
    assert story is not None
    assert story.state is OperationState.FAILED
    assert "worker_died" in story.text
    assert explain(world.core.view, op_id("nobody"), now_us=world.now_us) is None


def job_told(world: FakeWorld, job: str) -> tuple[str, str]:
    story = explain_job(world.core.view, JobId(job), now_us=world.now_us)
    assert story is not None
    return story.text, "\n".join(story.facts)


def test_a_job_tells_what_each_deployment_does(world: FakeWorld) -> None:
    text, facts = job_told(world, "a")
    assert text.startswith("a is running: actor is idle")
    assert "wpg-1-1 is ready, its state on host, at n0:0" in facts
    assert "shares its devices with 1 others; slowdown: bound 1.50" in facts
    world.submit("b1", job="b", seq=1)
    assert "actor runs step since 0.0 ms" in job_told(world, "b")[0]


def test_a_job_that_waits_tells_for_whom_and_when_that_is_expected_to_end(
    world: FakeWorld,
) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1)
    text, facts = job_told(world, "a")
    assert "held by wpg-1-2 of job b since" in text
    assert "its next operation, step, came 0.0 ms ago" in text
    assert "wpg-1-2 runs step, expected to end in about" in facts
    world.drain()
    assert "since it began it waited" in job_told(world, "a")[1]
    assert "for job b" in job_told(world, "a")[1]


def test_a_job_without_devices_tells_why(world: FakeWorld) -> None:
    world.job("c")
    assert job_told(world, "c")[0] == "c is queued: it has no deployment yet"
    world.join("n1", train=0, rollout=1)
    world.bring_up("c", "one", rollout=True)
    world.job("d")
    world.deploy("d", "two", rollout=True)
    assert "two waits for devices since 0.0 ms" in job_told(world, "d")[0]


def test_a_job_that_waits_beside_closed_nodes_is_told_of_them(world: FakeWorld) -> None:
    world.join("n1", train=0, rollout=1)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n1")))
    world.job("c")
    world.deploy("c", "one", rollout=True)
    waits = "; n1 is cordoned, so nothing is placed there: `plexctl node uncordon NODE` opens it"
    assert waits in job_told(world, "c")[0]
    world.job("d")
    world.deploy("d", "actor", devices=1)
    assert "n1" not in job_told(world, "d")[0]


def test_a_job_that_ended_has_no_story_and_its_waits_go_when_it_is_forgotten(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_ENDED_JOBS", 0)
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1)
    world.drain()
    assert world.core.view.waits
    world.end("b")
    world.drain()
    assert explain_job(world.core.view, JobId("b"), now_us=world.now_us) is None
    assert all("b" not in pair for pair in world.core.view.waits)


def test_it_names_the_burst_for_which_the_device_is_kept(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(*_: object, **__: object) -> int:
        return world.now_us + 1_000_000

    monkeypatch.setattr(contest, "awaited_until", soon)
    world.submit("a1", job="a", seq=1)
    assert "for a moment to the burst of wpg-1-2 of job b" in told(world, "a1")


def test_it_says_nothing_of_another_jobs_operation(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1, after=("b1",))
    assert "not submitted yet" in told(world, "a1")


def test_an_operation_of_a_lost_deployment_waits_until_that_is_rebuilt() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a", durable=True)
    world.die(WpgId("wpg-1-1"))
    world.submit("a1", job="a", seq=1)
    for _ in range(4):  # stopped, forgotten, spawned and initialized
        assert "rebuilt, which was lost" in told(world, "a1")
        assert "died with signal 9" in told(world, "a1")
        world.report(world.orders[0])
    assert "runs on wpg-1-2" in told(world, "a1")

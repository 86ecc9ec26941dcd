"""Where deployments go on a live cluster: idle devices, sharing, waiting with a reason."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import DeploymentId, JobId, NodeId, TenantId, UnitId
from plexsvc.scheduler.api.views import unplaced
from plexsvc.scheduler.api.views.story import explain, explain_job
from plexsvc.scheduler.core.actions import SpawnWpg
from plexsvc.scheduler.core.events import (
    NodeCordoned,
    NodeForgotten,
    NodeLost,
    NodeUncordoned,
    ProfilesLoaded,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import demands, reasons
from plexsvc.scheduler.core.planning.profile import PRIOR_JOB_US, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.vocabulary import Place
from tests.fakes.fake_world import FakeWorld, op_id

BUSY = Profile(
    period_us=100_000_000,
    segments=(Segment(phase="step", offset_us=0, duration_us=60_000_000),),
)
QUIET = replace(BUSY, segments=(Segment(phase="step", offset_us=0, duration_us=1_000_000),))


def kept(job: str, profile: Profile) -> KeptProfile:
    key = ProfileKey(tenant=TenantId("lab"), model="", layout="", name=f"{job}/actor")
    return KeptProfile(key=key, profile=profile, at_us=1, device_bytes=60)


def spawned(world: FakeWorld) -> dict[str, list[str]]:
    return {
        action.deployment_id: [f"{p.node_id}:{p.device}" for p in action.places]
        for action in world.log
        if isinstance(action, SpawnWpg)
    }


def test_a_job_takes_idle_devices_before_it_shares() -> None:
    world = FakeWorld()
    world.join("n0", train=2)
    world.join("n1", train=1)
    for job in "abcd":
        world.bring_up(job)
    assert [places[0] for places in spawned(world).values()] == ["n0:0", "n0:1", "n1:0", "n0:0"]


def test_a_larger_job_gets_an_aligned_block_and_may_merge_groups() -> None:
    world = FakeWorld()
    world.join("n0", train=4)
    world.bring_up("small")
    world.bring_up("pair", devices=2)
    world.bring_up("quad", devices=4)
    assert spawned(world) == {
        "small/actor": ["n0:0"],
        "pair/actor": ["n0:2", "n0:3"],
        "quad/actor": ["n0:0", "n0:1", "n0:2", "n0:3"],
    }


class CountedName(str):
    """A name that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_asking_for_a_gang_of_hosts_compares_no_device_with_all_others() -> None:
    world, hosts, each = FakeWorld(), 64, 8
    world.join("n0", train=1)
    cluster = world.core.cluster
    board = cluster.placement.planner("train").board
    for at in range(hosts):
        node_id = NodeId(f"host-{at:02}")
        cluster.placement.nodes[node_id] = cluster.placement.nodes[NodeId("n0")]
        for index in range(each):
            name = UnitId(CountedName(f"{node_id}:{index}"))
            board.join(UnitRoom(unit_id=name, host=node_id, index=index))
    CountedName.compared = 0
    assert reasons.has_gang(cluster.placement, kind="train", num_devices=hosts * each)
    assert CountedName.compared <= hosts * each


def test_two_jobs_known_to_be_too_busy_do_not_share_and_the_reason_is_told() -> None:
    world = FakeWorld()
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept("a", BUSY), kept("b", BUSY))))
    world.join("n0", train=1)
    for job in "ab":
        world.job(job)
        world.deploy(job)
        world.drain()
    assert list(spawned(world)) == ["a/actor"]
    world.submit("op", job="b", seq=1)
    told = explain(world.core.view, op_id("op"), now_us=world.now_us)
    assert told is not None
    assert "duty" in told.text
    world.end("a")
    world.drain()
    assert list(spawned(world)) == ["a/actor", "b/actor"]


def test_quiet_jobs_share_by_their_known_cycles() -> None:
    world = FakeWorld()
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept("a", QUIET), kept("b", QUIET))))
    world.join("n0", train=1)
    world.bring_up("a")
    world.bring_up("b")
    assert [places[0] for places in spawned(world).values()] == ["n0:0", "n0:0"]


def test_a_jobs_further_deployments_never_wait_for_other_jobs() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=2))
    world.join("n0", train=1)
    world.bring_up("a")
    world.bring_up("b")
    world.bring_up("a", "critic")
    world.bring_up("c")
    assert list(spawned(world)) == ["a/actor", "b/actor", "a/critic"]
    world.end("a")
    world.drain()
    assert list(spawned(world))[-1] == "c/actor"


def test_nothing_goes_to_a_cordoned_node_until_it_is_uncordoned() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0")))
    world.bring_up("a")
    assert spawned(world) == {}
    view = world.core.view
    assert "0 of 1" in unplaced.why(view, view.deployments[DeploymentId("a/actor")])
    assert unplaced.short_of(view, view.deployments[DeploymentId("a/actor")]) == "closed"
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=NodeId("n0")))
    assert spawned(world) == {"a/actor": ["n0:0"]}


def test_a_lost_node_takes_nothing_before_it_is_back_though_it_is_uncordoned() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0")))
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=NodeId("n0")))
    (planner,) = world.core.view.planners.values()
    assert not planner.board.idle
    world.join("n0", train=1)
    world.bring_up("a")
    assert spawned(world) == {"a/actor": ["n0:0"]}


def test_a_job_that_waits_shares_a_node_as_soon_as_it_is_uncordoned() -> None:
    world = FakeWorld()
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept("a", QUIET), kept("b", QUIET))))
    world.join("n0", train=1)
    world.bring_up("a")
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0")))
    world.bring_up("b")
    assert list(spawned(world)) == ["a/actor"]
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=NodeId("n0")))
    assert spawned(world) == {"a/actor": ["n0:0"], "b/actor": ["n0:0"]}


def test_a_forgotten_node_leaves_nothing_and_may_join_as_a_new_one() -> None:
    world = FakeWorld()
    world.join("n0", train=2)
    world.join("n1", train=1)
    world.bring_up("a", devices=2)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0")))
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    world.tell(NodeForgotten(at_us=world.tick(), node_id=NodeId("n0")))
    assert len(world.core.view.devices) == 3, "something of it is still to be stopped"
    world.drain()
    world.tell(NodeForgotten(at_us=world.tick(), node_id=NodeId("n0")))
    assert [place.unit for place in world.core.view.devices] == ["n1:0"]
    world.tell(NodeForgotten(at_us=world.tick(), node_id=NodeId("n1")))
    assert [place.unit for place in world.core.view.devices] == ["n1:0"], "it is up"
    world.join("n0", train=4)
    world.bring_up("b", devices=4)
    assert spawned(world)["b/actor"] == [f"n0:{index}" for index in range(4)]


def test_a_node_that_comes_back_is_used_again() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.bring_up("a")
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    world.drain()
    world.job("b")
    world.deploy("b")
    assert list(spawned(world)) == ["a/actor"]
    world.join("n0", train=1)
    world.bring_up("c")
    assert "c/actor" in spawned(world)


def test_what_a_job_had_is_given_back_with_its_last_process() -> None:
    world = FakeWorld()
    world.join("n0", train=2, rollout=1)
    world.bring_up("a")
    world.bring_up("a", "rollout", rollout=True)
    world.end("a")
    world.drain()
    for planner in world.core.view.planners.values():
        assert not planner.board.groups
        assert len(planner.board.idle) == len(planner.board.rooms)
    assert JobId("a") not in world.core.view.jobs


def test_a_job_lasts_as_it_says_else_as_earlier_runs_did_else_as_long_as_is_guessed() -> None:
    world = FakeWorld()
    world.join(train=1)
    ran = replace(kept("ran", BUSY), run_us=5_000_000_000)
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept("known", BUSY), ran)))
    world.job("says", called="ran", expected_steps=7)
    world.job("known")
    world.job("ran")
    world.job("cold", expected_steps=7)
    expected = {}
    for job in ("says", "known", "ran", "cold"):
        world.deploy(job)
        deployment = world.core.view.deployments[DeploymentId(f"{job}/actor")]
        expected[job] = demands.demand(world.core.cluster.placement, deployment).expected_us
    assert expected == {
        "says": 7 * BUSY.period_us,
        "known": PRIOR_JOB_US,
        "ran": 5_000_000_000,
        "cold": PRIOR_JOB_US,
    }


def test_a_jobs_instances_come_after_its_training_and_together() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    world.join("n0", train=1, rollout=2)
    world.bring_up("a")
    world.bring_up("a", "policy", rollout=True)
    for name, is_rollout in (("actor", False), ("policy", True), ("judge", True)):
        world.bring_up("b", name, rollout=is_rollout)
    assert "b/policy" not in spawned(world)
    story = explain_job(world.core.view, JobId("b"), now_us=world.now_us)
    assert story is not None
    assert "b/policy waits for its job's training, which comes first" in story.text
    world.bring_up("c", "policy", rollout=True)
    assert spawned(world)["c/policy"] == ["n0:2"]
    world.end("a")
    world.drain()
    assert spawned(world)["b/actor"] == ["n0:0"]
    assert "b/policy" not in spawned(world)
    world.end("c")
    world.drain()
    assert {"b/policy", "b/judge"} <= spawned(world).keys()


def test_devices_are_kept_for_instances_that_waited_past_their_ratio() -> None:
    world = FakeWorld()
    world.join("n0", rollout=3)
    for job in "abc":
        world.bring_up(job, "policy", rollout=True)
    world.bring_up("wide", "policy", devices=3, rollout=True)
    world.end("a")
    world.drain()
    world.bring_up("early", "policy", rollout=True)
    assert spawned(world)["early/policy"] == ["n0:1"]
    world.tick(15 * PRIOR_JOB_US)
    world.end("early")
    world.drain()
    world.bring_up("late", "policy", rollout=True)
    world.bring_up("b", "judge", rollout=True)
    assert "late/policy" not in spawned(world)
    assert spawned(world)["b/judge"] == ["n0:1"]
    for job in "bc":
        world.end(job)
        world.drain()
    assert len(spawned(world)["wide/policy"]) == 3


def cold(world: FakeWorld, *jobs: str, state_bytes: int = 400, version_bytes: int = 0) -> list[str]:
    """Submit jobs that nobody measured; return who was placed, in order."""
    for job in jobs:
        world.job(job)
        world.deploy(job, state_bytes=state_bytes, version_bytes=version_bytes)
        world.drain()
    return [deployment_id.partition("/")[0] for deployment_id in spawned(world)]


def test_a_cold_job_waits_where_host_memory_would_not_hold_its_estimated_state() -> None:
    world = FakeWorld(device_bytes=400)
    world.join("n0", train=1, nbytes=1000)
    assert cold(world, "a", "b", "c") == ["a", "b"]
    world.submit("op", job="c", seq=1)
    told = explain(world.core.view, op_id("op"), now_us=world.now_us)
    assert told is not None
    assert "no room for it in host memory; host n0 has 800 B of 1000 B booked" in told.text
    assert "(state 800 B); it needs 400 B there for each train device" in told.text
    world.end("a")
    world.drain()
    assert list(spawned(world)) == ["a/actor", "b/actor", "c/actor"]


def test_an_estimate_gives_way_to_what_the_ranks_say() -> None:
    world = FakeWorld(device_bytes=100)
    world.join("n0", train=1, nbytes=1000)
    placed = cold(world, "a", "b", "c", state_bytes=600)
    assert placed == ["a", "b", "c"], "100 each of 1000 once their ranks are up"


def test_published_versions_take_host_memory_too() -> None:
    world = FakeWorld(device_bytes=100)
    world.join("n0", train=1, nbytes=1000)
    assert cold(world, "a", "b", "c", state_bytes=100, version_bytes=300) == ["a", "b"]


def test_devices_of_a_host_share_its_memory() -> None:
    world = FakeWorld(device_bytes=700)
    world.join("n0", train=2, nbytes=1000)
    world.join("n1", train=2, nbytes=1000)
    cold(world, "a", "b", "c", state_bytes=700)
    assert {job: places[0] for job, places in spawned(world).items()} == {
        "a/actor": "n0:0",
        "b/actor": "n1:0",
    }, "c would be the second of a host of 1000, on an idle device as well as beside a job"


def test_a_job_larger_than_a_host_has_one_to_itself() -> None:
    world = FakeWorld(device_bytes=10)
    world.join("n0", train=2, nbytes=1000)
    assert cold(world, "a", state_bytes=5000) == ["a"], "its state manager knows whether it fits"


def test_a_deployment_that_moves_keeps_its_room_until_it_is_gone() -> None:
    world = FakeWorld(device_bytes=400)
    world.join("n0", train=1, nbytes=1000)
    world.join("n1", train=1, nbytes=1000)
    world.bring_up("a")
    world.relocate("a", places=(Place(node_id=NodeId("n1"), device=0),))
    world.job("b")
    world.deploy("b", state_bytes=601)
    assert "b/actor" not in spawned(world), "n0 has a's state and a copy of it, n1 has a's next"
    world.drain()
    assert spawned(world) == {"a/actor": ["n1:0"], "b/actor": ["n0:0"]}


def test_engines_that_may_share_take_idle_devices_and_shared_ones_together() -> None:
    world = FakeWorld()
    world.join("n0", train=2, rollout=2)
    world.bring_up("a")
    world.bring_up("a", "policy", rollout=True, shared=True)
    world.bring_up("b")
    world.bring_up("b", "policy", devices=2, rollout=True, shared=True)
    wpg = world.core.view.wpg_of(world.core.view.deployments[DeploymentId("b/policy")])
    assert wpg is not None
    assert len({place.unit for place in wpg.places}) == 2

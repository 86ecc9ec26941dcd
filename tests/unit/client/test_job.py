"""Jobs: who ends them, what keeps them alive, and what a controller started by submit joins."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import plexclient as plex
from plexclient import environment
from plexclient import job as job_module
from plexclient.background import Background
from plexclient.errors import ErrorCode, PlexError
from plexclient.session import Answered
from plexclient.wire.v1 import service_pb2
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault
from tests.rigs.waiting import wait_until
from tests.unit.client.conftest import Loop

COMPLETED = service_pb2.JOB_STATE_COMPLETED
FAILED = service_pb2.JOB_STATE_FAILED
CANCELLED = service_pb2.JOB_STATE_CANCELLED


class FakeClock:
    """A clock whose sleepers wake when the test says so."""

    def __init__(self) -> None:
        self.naps: list[float] = []
        self._asleep = threading.Semaphore(0)
        self._wake = threading.Semaphore(0)

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, duration_s: float) -> None:
        self.naps.append(duration_s)
        self._asleep.release()
        await asyncio.to_thread(self._wake.acquire)

    def until_asleep(self) -> None:
        """Wait until someone sleeps."""
        assert self._asleep.acquire(timeout=120)
        self._asleep.release()

    def tick(self) -> None:
        """Wait until someone sleeps, wake it, and wait until it sleeps again."""
        assert self._asleep.acquire(timeout=120)
        self._wake.release()
        self.until_asleep()

    def free(self) -> None:
        self._wake.release(1000)


def test_a_job_is_created_and_completed(cluster: plex.Cluster, router: FakeRouter) -> None:
    with cluster.job("grpo", session_ttl_s=12, labels={"task": "sum"}) as job:
        assert router.jobs[job.job_id].name == "grpo"
        assert router.jobs[job.job_id].session_ttl_us == 12_000_000
    assert [(end.job_id, end.outcome) for end in router.ended] == [(job.job_id, COMPLETED)]


def test_an_exception_fails_the_job_with_its_words(
    cluster: plex.Cluster, router: FakeRouter
) -> None:
    with pytest.raises(ZeroDivisionError), cluster.job("broken"):
        raise ZeroDivisionError("reward over zero")
    assert router.ended[0].outcome == FAILED
    assert router.ended[0].reason == "ZeroDivisionError: reward over zero"


def test_lost_calls_create_and_end_a_job_once(cluster: plex.Cluster, router: FakeRouter) -> None:
    for method in ("CreateJob", "CreateDeployment", "EndJob"):
        router.fail(method, Fault(lose_request=True), Fault(lose_reply=True))
    with cluster.job("cut") as job:
        job.deploy("actor", model="/model", backend="noop")
    assert len(router.jobs) == 1
    assert list(router.deployments) == [f"{job.job_id}/actor"]
    assert {end.outcome for end in router.ended} == {COMPLETED}


def test_a_job_declares_all_its_deployments_in_one_call(
    cluster: plex.Cluster, router: FakeRouter
) -> None:
    router.fail("CreateDeployments", Fault(lose_request=True), Fault(lose_reply=True))
    with cluster.job("set") as job:
        policy = plex.Declared("actor", model="/model", backend="noop")
        engine = plex.Declared("rollout", model=policy, backend="vllm", instances=2)
        actor, rollout = job.deploy_all(policy, engine)
        assert isinstance(actor, plex.Actor)
        assert isinstance(rollout, plex.Rollout)
        actor.step()
    assert set(map(tuple, router.sets)) == {("actor", "rollout")}
    asked = router.deployments[f"{job.job_id}/rollout"].spec
    assert (asked.model, asked.model_deployment_id) == ("", f"{job.job_id}/actor")
    assert asked.num_instances == 2


def test_a_deploy_that_waits_says_what_for(
    cluster: plex.Cluster,
    router: FakeRouter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(job_module, "WORD_S", 0.2)
    router.fail("CreateDeployment", Fault(stalls=True), Fault(stalls=True))
    with cluster.job("waits") as job:
        job.deploy("actor", model="/model", backend="noop")
    assert caplog.messages == [f"{job.job_id} is done"] * 2
    assert {record.name for record in caplog.records} == {"plexclient"}


async def test_jobs_and_connections_work_in_async_programs(router: FakeRouter) -> None:
    async with plex.connect(router.address, token=TOKEN) as cluster, cluster.job("async") as job:
        actor = await job.deploy.aio("actor", model="/model", backend="noop")
        assert (await actor.step.aio(lr=0.25))["lr"] == 0.25
    assert router.ended[0].outcome == COMPLETED


def test_the_last_keepalive_acknowledges_what_was_read_and_carries_the_figures(
    cluster: plex.Cluster, router: FakeRouter
) -> None:
    with cluster.job("acks") as job:
        actor = job.deploy("actor", model="/model", backend="noop")
        rollout = job.deploy("rollout", model=actor, backend="vllm")
        for _ in range(3):
            actor.step()
        rollout.sync(actor)
        rollout.generate([[1]], max_tokens=3)
        job.report(step=2, reward=0.25)
        job.report(reward=0.5)
    last = router.keepalives[-1]
    assert dict(last.acks) == {actor.deployment_id: 4, rollout.deployment_id: 2}
    assert dict(last.metrics) == {"step": 2.0, "reward": 0.5}


def test_keepalives_come_well_within_the_sessions_time_to_live(router: FakeRouter) -> None:
    clock = FakeClock()
    with plex.connect(router.address, token=TOKEN, clock=clock) as cluster:
        with cluster.job("beats", session_ttl_s=2) as job:
            clock.tick()
            before = len(router.keepalives)
            actor = job.deploy("actor", model="/model", backend="noop")
            actor.step()
            clock.tick()
            clock.tick()
            assert len(router.keepalives) == before + 2
            assert dict(router.keepalives[-1].acks) == {actor.deployment_id: 1}
            assert set(clock.naps) == {0.5}
        clock.free()


def test_a_notice_of_the_service_is_logged_once(
    router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    clock, router.notice = FakeClock(), "nearly all is spent"
    with plex.connect(router.address, token=TOKEN, clock=clock) as cluster:
        with cluster.job("frugal") as job:
            clock.tick()
            clock.tick()
        clock.free()
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert said == [f"{job.job_id}: nearly all is spent"]


def test_a_lost_keepalive_is_followed_by_the_next(router: FakeRouter) -> None:
    clock = FakeClock()
    with plex.connect(router.address, token=TOKEN, clock=clock) as cluster:
        with cluster.job("beats") as job:
            clock.tick()
            router.fail("KeepAlive", Fault(lose_request=True))
            before = len(router.keepalives)
            clock.tick()
            clock.tick()
            assert len(router.keepalives) == before + 1
            job.deploy("actor", model="/model", backend="noop").step()
        clock.free()


def test_calls_on_a_job_that_was_cancelled_say_so_at_once(router: FakeRouter) -> None:
    clock = FakeClock()
    with plex.connect(router.address, token=TOKEN, clock=clock) as cluster:
        with cluster.job("cancelled") as job:
            actor = job.deploy("actor", model="/model", backend="noop")
            clock.until_asleep()  # the first keepalive finds the job running
            router.job_state = CANCELLED
            clock.tick()
            with pytest.raises(PlexError, match="cancelled: as the test says") as caught:
                actor.step()
            with pytest.raises(PlexError) as again:
                job.deploy("critic", model="/model", backend="noop")
        clock.free()
    assert caught.value.code == again.value.code == "job_ended"
    assert router.attempts == []


def test_a_job_that_has_ended_before_cannot_be_entered(
    cluster: plex.Cluster, router: FakeRouter
) -> None:
    router.job_state = FAILED
    with pytest.raises(PlexError, match="has ended, failed"), cluster.job("late"):
        pytest.fail("entered a job that has ended")


@pytest.fixture
def submitted(router: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLEX_ADDRESS", router.address)
    monkeypatch.setenv("PLEX_TOKEN", TOKEN)
    monkeypatch.setenv("PLEX_JOB", "job-submitted")
    return "job-submitted"


def test_a_submitted_controller_joins_its_job_and_ends_it_with_its_block(
    submitted: str, router: FakeRouter
) -> None:
    with plex.connect() as cluster:
        with cluster.job("grpo") as job:
            actor = job.deploy("actor", model="/model", backend="noop")
            actor.step()
        assert [end.job_id for end in router.ended] == [submitted], "its devices are free"
    assert job.job_id == submitted
    assert actor.deployment_id == "job-submitted/actor"
    assert "CreateJob" not in router.calls
    assert dict(router.keepalives[-1].acks) == {actor.deployment_id: 1}


@pytest.mark.usefixtures("submitted")
def test_an_error_that_leaves_a_submitted_controllers_block_is_left_to_the_supervisor(
    router: FakeRouter,
) -> None:
    with (
        pytest.raises(ValueError, match="reward"),
        plex.connect() as cluster,
        cluster.job("grpo"),
    ):
        raise ValueError("no reward")
    assert router.ended == []


def test_only_the_first_job_of_a_submitted_controller_is_the_submitted_one(
    submitted: str, router: FakeRouter
) -> None:
    with plex.connect() as cluster, cluster.job("first") as first, cluster.job("second") as second:
        pass
    assert first.job_id == submitted
    assert list(router.jobs) == [second.job_id]
    assert [end.job_id for end in router.ended] == [second.job_id, first.job_id]


@pytest.fixture
def former(router: FakeRouter) -> service_pb2.Job:
    """A job whose controller has died after it sent six operations."""
    router.former = service_pb2.Job(job_id="job-former", name="grpo", controller=2)
    router.left = service_pb2.Deployment(next_seq=7, applied_seq=6, position='{"batch": 3}')
    router.lanes["job-former/actor"].next_seq = 7
    return router.former


def test_a_resumed_job_goes_on_after_what_its_former_controller_sent(
    former: service_pb2.Job, cluster: plex.Cluster, router: FakeRouter
) -> None:
    with cluster.job("grpo", resume=True) as job:
        actor = job.deploy("actor", model="/model", backend="noop", optimizer=plex.AdamW())
        assert job.deploy("actor", model="/model", backend="noop") is actor
        assert actor.position == {"batch": 3}
        actor.step(position={"batch": 4})
    assert job.job_id == former.job_id
    assert not router.created[0].is_seen_dead
    sent = [(o.seq, o.WhichOneof("body"), o.controller, o.position) for o in router.attempts]
    assert sent == [(7, "zero_grad", 2, ""), (8, "step", 2, '{"batch": 4}')]
    assert dict(router.keepalives[-1].acks) == {actor.deployment_id: 8}
    assert (router.keepalives[-1].controller, router.ended[0].controller) == (2, 2)


@pytest.mark.usefixtures("submitted")
def test_a_controller_that_was_started_again_resumes_its_job(
    former: service_pb2.Job, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLEX_RESTARTS", "1")
    with plex.connect() as cluster, cluster.job("grpo") as job:
        pass
    assert job.job_id == former.job_id
    assert router.created[0].job_id == "job-submitted"
    assert router.created[0].is_seen_dead
    assert [end.controller for end in router.ended] == [2]


@pytest.mark.parametrize("position", [float("nan"), object(), "x" * (1 << 15)])
def test_a_position_that_is_no_short_json_is_refused(loop: Loop, position: object) -> None:
    with pytest.raises(PlexError, match="step: position") as refused:
        loop.actor.step(position=position)
    assert refused.value.code == "bad_request"


def test_roles_follow_name_and_backend(loop: Loop) -> None:
    job = loop.job
    assert isinstance(loop.actor, plex.Actor)
    assert isinstance(loop.rollout, plex.Rollout)
    assert isinstance(job.deploy("critic", model="/m", backend="megatron"), plex.Critic)
    assert isinstance(job.deploy("reference", model="/m", backend="fsdp"), plex.Reference)
    with pytest.raises(PlexError, match="say role="):
        job.deploy("policy", model="/m", backend="megatron")
    assert isinstance(job.deploy("sampler", model="/m", backend="vllm"), plex.Rollout)
    assert isinstance(job.deploy("a", model="/m", backend="noop", role="reference"), plex.Reference)


def test_deploying_a_name_again_returns_the_same(loop: Loop) -> None:
    again = loop.job.deploy("actor", model="/model", backend="noop", optimizer=plex.AdamW())
    loop.actor.noop()
    again.noop()
    assert again is loop.actor


def test_a_deployment_asks_for_what_it_was_given(loop: Loop) -> None:
    actor = loop.job.deploy(
        "policy",
        role="actor",
        model="/m",
        backend="megatron",
        parallel=plex.Parallel(tp=2, dp=2, sequence_parallel=True),
        optimizer=plex.AdamW(lr=1e-3, clip_grad_norm=2),
        seed=7,
        micro_batch_tokens=512,
        durability="step",
        checkpoint_every=50,
        keep=2,
    )
    spec = actor.info.spec
    assert (spec.is_durable, spec.checkpoint_every, spec.checkpoints_kept) == (True, 50, 2)
    assert not loop.actor.info.spec.is_durable
    with pytest.raises(PlexError, match="none or step"):
        loop.job.deploy("critic", model="/m", backend="megatron", durability="always")
    with pytest.raises(PlexError, match=r"recompute=\['full'\]: give full, selective or None"):
        loop.job.deploy(
            "critic",
            model="/m",
            backend="megatron",
            recompute=["full"],  # type: ignore[arg-type]
        )
    assert (spec.parallel.tp, spec.parallel.dp, spec.parallel.sequence_parallel) == (2, 2, True)
    assert (spec.optimizer.lr, spec.optimizer.clip_grad_norm) == (1e-3, 2)
    assert (spec.dtype, spec.seed, spec.micro_batch_tokens) == ("float32", 7, 512)
    rollout = loop.rollout.info.spec
    assert (rollout.model, rollout.model_deployment_id) == ("/model", loop.actor.deployment_id)
    assert (rollout.num_instances, len(rollout.instances)) == (1, 0)


def test_an_elastic_rollout_asks_for_dedicated_and_spot_instances(loop: Loop) -> None:
    elastic = plex.Elastic(dedicated=2, spot=(1, 8), price={"spot": 2.5})
    spec = loop.job.deploy("wide", model="/m", backend="vllm", instances=elastic).info.spec
    assert spec.num_instances == 2
    asked = service_pb2.InstanceRange(kind="spot", least=1, most=8, price=2.5)
    assert list(spec.instances) == [asked]
    shared = plex.Elastic(shared=True)
    assert loop.job.deploy(
        "s", model="/m", backend="vllm", instances=shared
    ).info.spec.shares_devices
    reserved = plex.Elastic(reserved=True)
    spec = loop.job.deploy("reserved", model="/m", backend="vllm", instances=reserved).info.spec
    assert (spec.num_instances, spec.shares_devices, spec.where_it_trains) == (1, True, True)
    parallel = plex.Parallel(dp=2)
    actor = loop.job.deploy("critic", model="/m", backend="noop", parallel=parallel)
    spec = loop.job.deploy("all", model=actor, backend="vllm", instances=reserved).info.spec
    assert (spec.num_instances, spec.seeds) == (2, ""), "one on each device that trains"
    three = loop.job.deploy("three", model="/m", backend="vllm", instances=3).info.spec
    assert (three.num_instances, len(three.instances)) == (3, 0)


def test_engines_on_training_devices_serve_the_first_part_of_each_generate(
    loop: Loop, router: FakeRouter
) -> None:
    beside = plex.Elastic(reserved=True, dedicated=2, spot=(0, 4))
    wide = loop.job.deploy("wide", model=loop.actor, backend="vllm", instances=beside)
    spec = wide.info.spec
    assert (spec.num_instances, len(spec.instances), spec.shares_devices) == (2, 1, False)
    engines = router.deployments[f"{wide.deployment_id}-reserved"].spec
    assert (engines.seeds, engines.where_it_trains) == (wide.deployment_id, True)
    assert (engines.num_instances, len(engines.instances)) == (1, 0)
    assert len(wide.generate([[5, 6]], max_tokens=2)) == 1
    wait_until(lambda: ("wide-reserved", "seed") in router.order, what="the seed comes")
    again = plex.Declared("wide", model=loop.actor, backend="vllm", instances=beside)
    assert loop.job.deploy_all(again) == [wide]


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "judge"},
        {"instances": 0},
        {"instances": "two"},
        {"role": "actor", "backend": "fsdp", "instances": 2},
        {"role": "actor", "backend": "fsdp", "instances": plex.Elastic(spot=(0, 1))},
    ],
)
def test_a_deployment_of_an_unknown_role_or_with_instances_that_cannot_be_is_refused(
    loop: Loop, wrong: dict[str, Any]
) -> None:
    with pytest.raises(PlexError) as caught:
        loop.job.deploy("x", **({"model": "/m", "backend": "vllm"} | wrong))
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 2**64),
        ("micro_batch_tokens", -1),
        ("kv_cache_bytes", 0.5),
        ("max_model_len", "long"),
    ],
)
def test_a_number_that_no_deployment_can_have_is_refused_by_name(
    loop: Loop,
    name: str,
    value: Any,
) -> None:
    with pytest.raises(PlexError, match=f"{name}=.* must be an integer in"):
        loop.job.deploy("actor", model="/m", backend="megatron", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 2**31),
        ("session_ttl_s", -1),
        ("session_ttl_s", "x"),
        ("max_slowdown", -0.5),
        ("expected_steps", 10**10),
    ],
)
def test_terms_that_no_job_can_have_are_refused_by_name(
    cluster: plex.Cluster,
    name: str,
    value: Any,
) -> None:
    with pytest.raises(PlexError, match=f"{name}=.* must be"):
        cluster.job("odd", **{name: value})


@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ({"labels": {"run": 3}}, "label 'run' is 3; it must be a text"),
        ({"labels": {3: "run"}}, "a label's name is 3; it must be a text"),
        ({"labels": ["run"]}, r"labels is \['run'\]; it must be a dict of texts"),
        ({"name": 3}, "name is 3; it must be a text"),
    ],
)
def test_a_name_or_labels_that_are_no_text_are_refused(
    cluster: plex.Cluster, terms: dict[str, Any], found: str
) -> None:
    with pytest.raises(PlexError, match=found) as refused:
        cluster.job(**{"name": "odd", **terms})
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_a_degree_below_one_is_refused() -> None:
    with pytest.raises(PlexError, match="tp=0"):
        plex.Parallel(tp=0)


@pytest.mark.parametrize("wrong", [{"eps": 0.0}, {"lr": float("nan")}, {"beta1": -0.5}])
def test_an_optimizer_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlexError, match=f"AdamW: {next(iter(wrong))}="):
        plex.AdamW(**wrong)


@pytest.mark.parametrize(
    "metrics",
    [
        {"loss": "low"},
        {"reward": 10**400},
        {"step": -1},
        {"step": 0.5},
        {f"m{i}": 0.0 for i in range(65)},
        {"x" * 129: 0.0},
        {"a\nb": 0.0},
    ],
)
def test_progress_that_cannot_be_shown_is_refused(loop: Loop, metrics: dict[str, float]) -> None:
    with pytest.raises(PlexError, match="report"):
        loop.job.report(**metrics)
    loop.job.report(step=0, reward=-0.5, loss=float("nan"))


def test_a_fork_of_the_controller_can_neither_call_nor_end_its_job(
    cluster: plex.Cluster, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.job("forked") as job:
        actor = job.deploy("actor", model="/m", backend="noop")
        with monkeypatch.context() as child:
            child.setattr(Background, "is_own", False)
            with pytest.raises(PlexError, match="made in another process"):
                actor.noop()
            job.__exit__(None, None, None)
            cluster.close()
        assert router.ended == []
    assert len(router.ended) == 1


def test_deploying_outside_the_job_is_refused(cluster: plex.Cluster) -> None:
    with pytest.raises(PlexError, match="use it inside"):
        cluster.job("x").deploy("actor", model="/m", backend="noop")


def test_a_failed_deployment_raises_the_services_reason(loop: Loop, router: FakeRouter) -> None:
    error = PlexError(ErrorCode.UNKNOWN_MODEL, "no config.json in /m", model="/m")
    router.fail("CreateDeployment", Fault(refuse=error))
    with pytest.raises(PlexError) as caught:
        loop.job.deploy("critic", model="/m", backend="megatron")
    assert (caught.value.code, caught.value.facts) == ("unknown_model", {"model": "/m"})


def test_a_wrong_token_is_refused_at_once(router: FakeRouter) -> None:
    with plex.connect(router.address, token="wrong") as cluster, pytest.raises(PlexError) as caught:
        cluster.status()
    assert caught.value.code == "unauthenticated"


def test_status_lists_jobs(loop: Loop, cluster: plex.Cluster) -> None:
    assert [job.job_id for job in cluster.status().jobs] == [loop.job.job_id]


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize("address", [None, "", "router", "router:", ":1", "router:99999"])
def test_an_address_that_is_none_is_refused_with_what_to_do(address: str | None) -> None:
    with pytest.raises(PlexError) as caught:
        plex.connect(address)
    assert caught.value.code == "bad_request"
    assert "host:port" in caught.value.message


@pytest.mark.parametrize("token", ["\N{LATIN SMALL LETTER E WITH ACUTE}", "two\nlines"])
def test_a_token_that_no_call_can_carry_is_refused(token: str) -> None:
    with pytest.raises(PlexError, match="the token has characters"):
        plex.connect("127.0.0.1:1", token=token)


def test_the_environment_is_read_from_its_variables() -> None:
    assert environment.read({"PLEX_RESTARTS": "2"}).restarts == 2
    found = environment.read({"PLEX_ADDRESS": "a:1", "PLEX_TOKEN": "t", "PLEX_JOB": "j"})
    assert (found.address, found.token, found.job_id) == ("a:1", "t", "j")
    assert environment.read({}) == environment.Environment()


def test_an_acknowledgement_stops_before_the_first_answer_not_read() -> None:
    answered = Answered()
    for seq in (3, 1, 5):
        answered.add(seq)
    assert answered.upto == 1
    answered.add(2)
    assert answered.upto == 3


def test_a_job_says_how_many_steps_it_expects(cluster: plex.Cluster, router: FakeRouter) -> None:
    with cluster.job("long", expected_steps=300):
        pass
    assert router.created[-1].expected_steps == 300

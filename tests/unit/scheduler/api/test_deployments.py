"""What the core is told of a deployment that a client asks for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from plexclient.specs import AdamW, Parallel
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import DeploymentRequested
from tests.rigs.model_families import BOTH, config_of
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig
from tests.rigs.waiting import wait_until

TRAINED = pb.DeploymentSpec(role="actor", backend="megatron", optimizer=AdamW().to_wire())
READ_ONLY = pb.DeploymentSpec(role="reference", backend="megatron")


async def told(
    rig: Rig, spec: pb.DeploymentSpec, *, model: Path, monkeypatch: pytest.MonkeyPatch
) -> DeploymentRequested:
    """Ask for a deployment of a model and return what the core heard of it."""
    heard: list[object] = []
    post = rig.driver.post

    def listening(event: object) -> object:
        heard.append(event)
        return post(event)  # type: ignore[arg-type] # passed on

    with monkeypatch.context() as patched:
        patched.setattr(rig.driver, "post", listening)
        asked = pb.DeploymentSpec()
        asked.CopyFrom(spec)
        asked.model, asked.model_root, asked.dtype = str(model), str(model.parent), "bfloat16"
        request = pb.CreateDeploymentRequest(
            deployment_id=DeploymentId(f"job/{spec.role}"),
            job_id="job",
            tenant=TENANT,
            name=spec.role,
            spec=asked,
        )
        await rig.scheduler.call("CreateDeployment", request, pb.Deployment)
    (found,) = (event for event in heard if isinstance(event, DeploymentRequested))
    return found


async def test_the_core_is_told_what_state_and_versions_will_take_of_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config_of(BOTH["qwen2"])))
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job")
        trained = await told(rig, TRAINED, model=model, monkeypatch=monkeypatch)
        read_only = await told(rig, READ_ONLY, model=model, monkeypatch=monkeypatch)
    each = read_only.state_bytes
    assert each > 0
    assert trained.state_bytes == 9 * each, "parameters of 2 bytes; 4 each: masters, moments, grads"
    assert trained.version_bytes == 3 * each, "the versions that are kept, and the next"
    assert read_only.version_bytes == 0


def set_of(job_id: str, **specs: pb.DeploymentSpec) -> pb.CreateDeploymentsRequest:
    """Return the request of a job's deployments as one set."""
    return pb.CreateDeploymentsRequest(
        job_id=job_id,
        tenant=TENANT,
        deployments=[
            pb.CreateDeploymentRequest(
                deployment_id=f"{job_id}/{name}",
                job_id=job_id,
                tenant=TENANT,
                name=name,
                spec=spec,
            )
            for name, spec in specs.items()
        ],
    )


ACTOR = pb.DeploymentSpec(role="actor", backend="noop")
ROLLOUT = pb.DeploymentSpec(role="rollout", backend="vllm")
WIDE = Parallel(dp=2).to_wire()


async def create(rig: Rig, request: pb.CreateDeploymentsRequest) -> list[str]:
    reply = await rig.scheduler.call("CreateDeployments", request, pb.CreateDeploymentsReply)
    return [f"{made.name} {made.state}" for made in reply.deployments]


async def test_two_jobs_that_would_have_closed_a_circle_declare_and_run_in_turn(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 2}]) as rig:
        for job_id in ("a", "b"):
            await rig.job(job_id)
        asked = {
            job_id: set_of(job_id, actor=ACTOR, rollout=ROLLOUT, judge=ROLLOUT)
            for job_id in ("a", "b")
        }
        every = ["actor ready", "rollout ready", "judge ready"]
        assert await create(rig, asked["a"]) == every
        async with asyncio.timeout(120), asyncio.TaskGroup() as calls:
            waiting = calls.create_task(create(rig, asked["b"]))
            again = calls.create_task(create(rig, asked["b"]))
            known = rig.driver.cluster.deployments
            await asyncio.to_thread(wait_until, lambda: len(known) == 6, what="both sets")
            assert not waiting.done()
            placed = {wpg.job_id for wpg in rig.driver.cluster.wpgs.values()}
            assert placed == {"a"}
            await rig.end("a")
        assert waiting.result() == again.result() == every


async def test_longer_sequences_than_the_model_takes_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config_of(BOTH["qwen2"])))
    longest = config_of(BOTH["qwen2"])["max_position_embeddings"]
    spec = pb.DeploymentSpec(
        role="rollout", backend="vllm", model=str(model), model_root=str(model.parent)
    )
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        await rig.job("a")
        spec.max_model_len = longest + 1
        with pytest.raises(PlexError, match=f"takes sequences of {longest} at most") as refused:
            await create(rig, set_of("a", actor=ACTOR, rollout=spec))
        assert refused.value.code is ErrorCode.BAD_REQUEST
        assert refused.value.facts["field"] == "max_model_len"
        assert rig.driver.registry.deployments == {}
        assert not rig.driver.cluster.deployments
        spec.max_model_len = longest
        made = await create(rig, set_of("a", actor=ACTOR, rollout=spec))
        assert made == ["actor ready", "rollout ready"]


async def test_a_refused_set_leaves_no_records_and_no_events(tmp_path: Path) -> None:
    config = SchedulerConfig(max_deployments_per_job=2)
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 2}], config=config) as rig:
        await rig.job("a")
        before = rig.driver.registry.deployments.copy()
        with pytest.raises(PlexError) as refusal:
            await create(rig, set_of("a", actor=ACTOR, rollout=ROLLOUT, judge=ROLLOUT))
        assert refusal.value.code is ErrorCode.BAD_REQUEST
        assert rig.driver.registry.deployments == before
        assert not rig.driver.cluster.deployments
        made = await create(rig, set_of("a", actor=ACTOR, rollout=ROLLOUT))
        assert made == ["actor ready", "rollout ready"]


async def test_tensor_ranks_without_a_device_for_them_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    wide = pb.DeploymentSpec(role="rollout", backend="vllm", parallel=Parallel(tp=2).to_wire())
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1, "rollout-tp4": 1}]) as rig:
        await rig.job("a")
        with pytest.raises(PlexError, match="a rollout device with tp = 2") as refused:
            await create(rig, set_of("a", wide=wide))
        assert refused.value.code is ErrorCode.NO_PLACEMENT
        assert "there are rollout, rollout-tp4, train" in refused.value.message
        assert rig.driver.registry.deployments == {}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"actor": ACTOR, "rollout": ROLLOUT, "judge": ROLLOUT}, "a/rollout and a/judge need 2"),
        ({"big": pb.DeploymentSpec(role="actor", backend="noop", parallel=WIDE)}, "a/big needs 2"),
    ],
)
async def test_what_no_cluster_holds_is_refused_and_leaves_nothing(
    tmp_path: Path, asked: dict[str, pb.DeploymentSpec], told: str
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        await rig.job("a")
        with pytest.raises(PlexError, match=told) as refused:
            await create(rig, set_of("a", **asked))
        assert refused.value.code is ErrorCode.NO_PLACEMENT
        assert "ask for fewer devices, or add nodes" in refused.value.message
        assert rig.driver.registry.deployments == {}
        assert rig.driver.registry.jobs[JobId("a")].deployment_ids == []
        assert not rig.driver.cluster.deployments
        if len(asked) == 1:
            (one,) = set_of("a", **asked).deployments
            with pytest.raises(PlexError, match=told):
                await rig.scheduler.call("CreateDeployment", one, pb.Deployment)
            assert rig.driver.registry.deployments == {}
        assert await create(rig, set_of("a", **{next(iter(asked)): ACTOR})) != []

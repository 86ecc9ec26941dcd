"""What the core is told of a deployment that a client asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plexclient.specs import AdamW
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.events import DeploymentRequested
from tests.rigs.model_families import BOTH, config_of
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig

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
    assert trained.version_bytes == 2 * each, "the versions that are kept"
    assert read_only.version_bytes == 0

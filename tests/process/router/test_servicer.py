"""A router on a port: who may call, what it refuses, what it passes on."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from plexclient.ids import new_operation_id
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode
from plexsvc.router.config import RouterConfig
from plexsvc.router.validation import digest_of
from plexsvc.rpc.errors import error_from
from plexsvc.weights.headers import INDEX
from tests.rigs import hostile_files
from tests.rigs.router_rig import ACTOR, JOB, TENANT, TOKEN, Rig, batch, metadata, start_rig
from tests.rigs.tiny_models import make_qwen3

pytestmark = pytest.mark.process


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with start_rig() as started:
        yield started


async def refusal_of(call: grpc.aio.UnaryUnaryCall) -> ErrorCode:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from(failure.value).code


@pytest.mark.parametrize("header", [(), metadata("wrong"), (("authorization", "secret"),)])
async def test_a_call_without_a_known_bearer_token_is_unauthenticated(
    rig: Rig, header: tuple[tuple[str, str], ...]
) -> None:
    call = rig.client.stub.ListJobs(pb.ListJobsRequest(), metadata=header, timeout=120)
    assert await refusal_of(call) == ErrorCode.UNAUTHENTICATED
    assert await call.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_acts_for_the_tenant_of_its_token_whatever_it_says(rig: Rig) -> None:
    request = pb.CreateJobRequest(job_id="job-2", name="job", tenant="rival")
    job = await rig.client.stub.CreateJob(request, metadata=metadata(), timeout=120)
    assert job.tenant == "acme"


async def test_figures_that_cannot_be_shown_do_not_end_a_session(rig: Rig) -> None:
    request = pb.KeepAliveRequest(job_id=JOB, acks={"a": 7}, metrics={"x" * 1000: 1.0})
    call = rig.client.stub.KeepAlive(request, metadata=metadata(), timeout=120)
    assert await refusal_of(call) == ErrorCode.BAD_REQUEST
    (taken,) = rig.scheduler.beats
    assert (dict(taken.acks), dict(taken.metrics)) == ({"a": 7}, {})


async def test_another_tenants_job_is_not_found(rig: Rig) -> None:
    request = pb.KeepAliveRequest(job_id=JOB)
    call = rig.client.stub.KeepAlive(request, metadata=metadata("other"), timeout=120)
    assert await refusal_of(call) == ErrorCode.NOT_FOUND
    operation = rig.client.operation(noop=ops.Noop())
    result = await rig.client.stub.SubmitOperation(
        operation, metadata=metadata("other"), timeout=60
    )
    assert result.error.code == ErrorCode.NOT_FOUND
    assert rig.scheduler.effects == []


async def test_a_good_inline_batch_reaches_the_scheduler_with_its_plan(rig: Rig) -> None:
    body = ops.ForwardBackward(loss="ppo")
    operation = rig.client.operation(batch([5, 9, 3]), forward_backward=body)
    result = await rig.client.submit(operation)
    assert result.state == ops.OPERATION_STATE_ANSWERED
    record = rig.scheduler.records[operation.operation_id]
    assert record.operation.tenant == "acme"
    assert list(record.operation.plan.lengths) == [5, 9, 3]
    assert len(record.operation.plan.ranks) == 2
    assert record.operation.digest == digest_of(operation), "it is of what the client sent"


async def test_a_refused_operation_takes_its_place_in_the_order(rig: Rig) -> None:
    arrays = batch([5, 9])
    arrays["advantages"][3] = np.nan
    bad = rig.client.operation(arrays, forward_backward=ops.ForwardBackward(loss="ppo"))
    for _ in range(2):
        result = await rig.client.submit(bad)
        assert result.error.code == ErrorCode.BAD_BATCH
        assert "advantages" in result.error.message
    record = rig.scheduler.records[bad.operation_id]
    assert record.operation.digest == digest_of(bad), "also where the payload goes no further"
    assert record.operation.seq == 1
    assert record.operation.WhichOneof("body") == "forward_backward"
    assert rig.scheduler.effects == []


async def test_an_operation_without_a_place_is_refused_at_once(rig: Rig) -> None:
    operation = rig.client.operation(noop=ops.Noop())
    operation.seq = 0
    assert (await rig.client.submit(operation)).error.code == ErrorCode.BAD_REQUEST
    operation.seq, operation.operation_id = 1, b"short"
    assert (await rig.client.submit(operation)).error.code == ErrorCode.BAD_REQUEST
    assert rig.scheduler.records == {}


async def test_a_stale_sequence_number_stays_stale_for_a_bad_operation(rig: Rig) -> None:
    await rig.client.submit(rig.client.operation(noop=ops.Noop()))
    bad = rig.client.operation(forward_backward=ops.ForwardBackward(loss="pp0"))
    bad.seq = 1
    assert (await rig.client.submit(bad)).error.code == ErrorCode.STALE_SEQUENCE


async def test_layouts_are_asked_for_once_and_again_when_forgotten(rig: Rig) -> None:
    for _ in range(3):
        await rig.client.submit(rig.client.operation(noop=ops.Noop()))
    assert rig.scheduler.lookups == 1


async def test_a_deployment_takes_the_model_of_another(rig: Rig, tmp_path: Path) -> None:
    model = make_qwen3(tmp_path / "tiny", seed=0)
    first = pb.CreateDeploymentRequest(
        deployment_id="job-1/a",
        job_id=JOB,
        name="a",
        spec=pb.DeploymentSpec(role="actor", backend="fsdp", model=str(model)),
    )
    reply = await rig.client.stub.CreateDeployment(first, metadata=metadata(), timeout=120)
    assert reply.state == "ready"
    second = pb.CreateDeploymentRequest(
        deployment_id="job-1/b",
        job_id=JOB,
        name="b",
        spec=pb.DeploymentSpec(
            role="rollout", backend="vllm", model_deployment_id=first.deployment_id
        ),
    )
    reply = await rig.client.stub.CreateDeployment(second, metadata=metadata(), timeout=120)
    assert reply.spec.model == str(model)


async def test_an_unknown_model_directory_is_refused_before_the_scheduler_hears(rig: Rig) -> None:
    request = pb.CreateDeploymentRequest(
        deployment_id="job-1/ghost",
        job_id=JOB,
        name="ghost",
        spec=pb.DeploymentSpec(role="actor", backend="megatron", model="/no/such/model"),
    )
    call = rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=120)
    assert await refusal_of(call) == ErrorCode.UNKNOWN_MODEL
    assert "job-1/ghost" not in rig.scheduler.deployments


def sparse(path: Path, nbytes: int = 1 << 40) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        os.truncate(file.fileno(), nbytes)


def in_place(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Have something be made where a file is."""

    def made(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return made


def opened_below(directory: Path) -> list[str]:
    """Return the files of a directory that this process has open."""
    descriptors = Path("/proc/self/fd").iterdir()
    targets = [str(one.readlink()) for one in descriptors if one.is_symlink()]
    return [target for target in targets if target.startswith(str(directory))]


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "sparse": sparse,
    "fifo": in_place(os.mkfifo),
    "directory": in_place(Path.mkdir),
    "loop": in_place(lambda path: path.symlink_to(path.name)),
    "device": in_place(lambda path: path.symlink_to("/dev/zero")),
    "proc": in_place(lambda path: path.symlink_to("/proc/self/environ")),
    "dangling": in_place(lambda path: path.symlink_to("nowhere")),
    "nested": lambda path: path.write_bytes(b"[" * 300_000),
    "binary": lambda path: path.write_bytes(os.urandom(4096)),
    "empty": lambda path: path.write_bytes(b""),
}
ODD_MODELS: dict[str, Callable[[Path], object]] = {
    **{
        f"{name} {how}": partial(lambda make, name, model: make(model / name), make, name)
        for how, make in ODD_FILES.items()
        for name in ("config.json", "model.safetensors", ".complete")
        if (name, how) != (".complete", "directory")  # it is left out, as all directories are
    },
    "a name with a line end": lambda model: (model / "a\nb").touch(),
    "a name that is not utf-8": lambda model: (model / os.fsdecode(b"\xff")).touch(),
    "an index without its file": lambda model: (model / INDEX).write_text(
        '{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}'
    ),
    "a config of another size": lambda model: (model / "config.json").write_text(
        (model / "config.json").read_text().replace('"vocab_size": ', '"vocab_size": 1')
    ),
}


async def test_an_odd_model_is_refused_before_the_scheduler_hears_and_costs_no_descriptor(
    tmp_path: Path,
) -> None:
    whole = make_qwen3(tmp_path / "whole", seed=0)
    config = RouterConfig(tokens={TOKEN: TENANT}, model_roots=(tmp_path,))
    async with start_rig(config=config) as rig:
        request = pb.CreateDeploymentRequest(
            deployment_id="job-1/odd",
            job_id=JOB,
            name="odd",
            spec=pb.DeploymentSpec(role="actor", backend="fsdp"),
        )
        for number, (name, make) in enumerate((ODD_MODELS | hostile_files.MAKE).items()):
            model = Path(shutil.copytree(whole, tmp_path / f"odd-{number}"))
            make(model)
            request.spec.model = model.name
            call = rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=120)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                print(name, await call)  # noqa: T201 - what is not refused is seen
            error = error_from(failure.value)
            assert error.code in {ErrorCode.UNKNOWN_MODEL, ErrorCode.BAD_REQUEST}, (name, error)
            assert model.name in error.message, (name, error)
            assert opened_below(tmp_path) == [], name
        assert "job-1/odd" not in rig.scheduler.deployments
        request.spec.model = "whole"
        reply = await rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=120)
        assert reply.state == "ready"


async def test_a_checkpoint_has_a_name_that_is_shown(rig: Rig) -> None:
    for kind in ("save", "load", "export"):
        for name in ("\n", "step\n1", "\x1b[2J", " "):
            operation = rig.client.operation()
            getattr(operation, kind).path = name
            refused = (await rig.client.submit(operation)).error
            assert refused.code == ErrorCode.BAD_REQUEST
            assert "control characters" in refused.message, (kind, name, refused.message)


async def test_a_model_whose_files_lead_to_the_operator_s_is_refused_whatever_runs_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "models" / "shared").mkdir(parents=True)
    (tmp_path / "models" / "shared" / "config.json").write_text("{}")
    (tmp_path / "cluster.json").write_text('{"token": "operator"}')
    (tmp_path / "models" / "shared" / "tokenizer.json").symlink_to(tmp_path / "cluster.json")
    config = RouterConfig(tokens={TOKEN: TENANT}, model_roots=(tmp_path / "models",))
    async with start_rig(config=config) as rig:
        for model in ("shared", str(tmp_path), "../"):
            request = pb.CreateDeploymentRequest(
                deployment_id="job-1/thief",
                job_id=JOB,
                name="thief",
                spec=pb.DeploymentSpec(role="actor", backend="noop", model=model),
            )
            call = rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=120)
            assert await refusal_of(call) in {ErrorCode.UNKNOWN_MODEL, ErrorCode.BAD_REQUEST}
        assert "job-1/thief" not in rig.scheduler.deployments


async def test_a_file_that_became_a_link_after_the_deployment_is_not_served(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "secret").write_text("operator")
    (model / "tokenizer.json").symlink_to("/etc/hostname")
    async with start_rig(model=model) as rig:
        request = pb.FetchModelFileRequest(
            job_id=JOB, deployment_id="job-1/actor", name="tokenizer.json"
        )
        call = rig.client.stub.FetchModelFile(request, metadata=metadata(), timeout=120)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert error_from(caught.value).code is ErrorCode.NOT_FOUND


async def test_a_bug_of_the_router_is_told_as_internal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> pb.ListJobsReply:
        raise ZeroDivisionError("one by none")

    monkeypatch.setattr(rig.scheduler, "ListJobs", broken)
    call = rig.client.stub.ListJobs(pb.ListJobsRequest(), metadata=metadata(), timeout=120)
    assert await refusal_of(call) == ErrorCode.INTERNAL


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 70000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"],
    ids=["http1", "zeros", "broken-http2"],
)
async def test_garbage_on_the_port_disturbs_nobody(rig: Rig, garbage: bytes) -> None:
    host, _, port = rig.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as raw:
        raw.sendall(garbage)
        result = await rig.client.submit(rig.client.operation(noop=ops.Noop()))
    assert result.state == ops.OPERATION_STATE_ANSWERED


async def test_bytes_that_are_no_operation_end_only_their_own_call(rig: Rig) -> None:
    call: Any = rig.client.channel.unary_unary("/plexsvc.v1.Router/SubmitOperation")
    with pytest.raises(grpc.aio.AioRpcError):
        await call(b"\xff\xff\xff", metadata=metadata(), timeout=120)
    result = await rig.client.submit(rig.client.operation(noop=ops.Noop()))
    assert result.state == ops.OPERATION_STATE_ANSWERED


async def test_an_unknown_job_is_not_found(rig: Rig) -> None:
    operation = ops.Operation(
        operation_id=new_operation_id(),
        job_id="job-0",
        deployment_id=ACTOR,
        seq=1,
        noop=ops.Noop(),
    )
    assert (await rig.client.submit(operation)).error.code == ErrorCode.NOT_FOUND

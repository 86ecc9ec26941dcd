"""The driver over fake nodes: real journal, real gRPC, whole lives of jobs."""

from __future__ import annotations

from plexclient.wire.v1 import operations_pb2, service_pb2


async def test_a_job_deploys_runs_and_ends_leaving_nothing(rig) -> None:
    await rig.job("job-1")
    deployment = await rig.deploy("job-1")
    assert deployment.state == "ready"
    assert deployment.vocab_size == 32
    result = await rig.run("job-1", "step")
    assert result.state == operations_pb2.OPERATION_STATE_ANSWERED
    job = await rig.end("job-1")
    assert job.state == service_pb2.JOB_STATE_COMPLETED
    assert rig.behaviour.stopped == ["wpg-1-1/0"]
    assert rig.behaviour.forgotten == ["wpg-1-1"]
    assert not rig.driver.core.cluster.wpgs

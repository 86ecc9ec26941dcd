"""A tenant reads its own names only; an operator reads all."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId, TenantId
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.jobs import JobRecord, Registry


def registry() -> Registry:
    known = Registry(SchedulerConfig())
    for job_id, tenant in [("job-1", "lab"), ("job-12", "rival"), ("a", "rival")]:
        known.jobs[JobId(job_id)] = JobRecord(
            job_id=JobId(job_id),
            tenant=TenantId(tenant),
            name=f"{tenant}'s",
            labels={},
            created_us=1,
            session_ttl_us=1,
            deployment_ids=[DeploymentId(f"{job_id}/actor")],
        )
    return known


def lens(tenant: str, *, is_operator: bool = False) -> Lens:
    return Lens(registry(), service_pb2.PackRequest(tenant=tenant, is_operator=is_operator))


TEXT = "held by job-12 since 3 ms; job-1/actor after job-12/actor; a job, job-123"


def test_a_tenant_reads_no_foreign_id_and_all_of_its_own() -> None:
    hidden = "another tenant's"
    own = f"held by {hidden} since 3 ms; job-1/actor after {hidden}; {hidden} job, job-123"
    assert lens("lab").text(TEXT) == own


def test_an_operator_and_the_embedded_caller_read_everything() -> None:
    assert lens("ops", is_operator=True).text(TEXT) == TEXT
    assert lens("").text(TEXT) == TEXT


def test_names_of_others_are_empty() -> None:
    look = lens("lab")
    assert [look.job_name("job-1"), look.tenant_of("job-1")] == ["lab's", "lab"]
    assert [look.job_name("job-12"), look.tenant_of("job-12"), look.sees("job-12")] == [
        *("", "", False)
    ]
    assert lens("ops", is_operator=True).tenant_of("job-12") == "rival"


def test_anothers_job_is_as_unknown_as_one_that_never_was() -> None:
    for job_id in ("job-12", "nobody"):
        with pytest.raises(PlexError, match="job list") as caught:
            lens("lab").job(job_id)
        assert caught.value.code is ErrorCode.NOT_FOUND
    assert lens("ops", is_operator=True).job("job-12").name == "rival's"

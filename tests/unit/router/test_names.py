"""Names and ids that clients choose: what is shown on terminals stays short and printable."""

from __future__ import annotations

from typing import Any

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router import names
from plexsvc.router.config import RouterConfig

CONFIG = RouterConfig(max_name_chars=16, max_labels=1, max_metrics=1)


def job(**changes: Any) -> pb.CreateJobRequest:
    return pb.CreateJobRequest(**{"job_id": "job-1", "name": "grpo-math_1.5b", **changes})


def deployment(**changes: Any) -> pb.CreateDeploymentRequest:
    asked = {"job_id": "job-1", "name": "a.b", "deployment_id": "job-1/a.b", **changes}
    return pb.CreateDeploymentRequest(**asked)


def test_plain_names_and_labels_in_any_script_are_taken() -> None:
    names.check_job(job(labels={"team": "数学"}), CONFIG)
    names.check_job(job(name="n" * names.MAX_NAME_CHARS), CONFIG)
    names.check_deployment(deployment())
    names.check_metrics(pb.KeepAliveRequest(metrics={"reward": 1.0}), CONFIG)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"job_id": ""}, "no job_id"),
        ({"job_id": "../job"}, "a-z A-Z 0-9"),
        ({"job_id": "j" * 17}, "is not 16 or fewer"),
        ({"job_id": ".."}, "a-z A-Z 0-9"),
        ({"name": ""}, "1 to 64"),
        ({"name": "a\x1b[31m"}, "a-z A-Z 0-9"),
        ({"name": "größe"}, "a-z A-Z 0-9"),
        ({"name": "actor~copied"}, "a-z A-Z 0-9"),
        ({"name": ".."}, "begins with"),
        ({"name": "a/b"}, "a-z A-Z 0-9"),
        ({"name": "n\n"}, "a-z A-Z 0-9"),
        ({"name": "n" * 65}, "1 to 64"),
        ({"name": "n" * 100_000}, "1 to 64"),
        ({"labels": {"a": "b", "c": "d"}}, "at most 1"),
        ({"labels": {"": "b"}}, "label's name is empty"),
        ({"labels": {"a": "two\nlines"}}, "label 'a'"),
    ],
)
def test_a_job_that_nobody_could_show_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(PlexError) as caught:
        names.check_job(job(**changes), CONFIG)
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert word in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "", "deployment_id": "job-1/"}, "1 to 64"),
        ({"deployment_id": "job-2/a.b"}, "its id is 'job-1/a.b'"),
        ({"name": "x" * 65, "deployment_id": "job-1/" + "x" * 65}, "1 to 64"),
        ({"name": "actor~copied", "deployment_id": "job-1/actor~copied"}, "a-z A-Z 0-9"),
    ],
)
def test_a_deployment_has_a_name_and_the_id_made_of_it(
    changes: dict[str, object], word: str
) -> None:
    with pytest.raises(PlexError, match=word):
        names.check_deployment(deployment(**changes))


def test_more_metrics_than_a_job_shows_are_refused() -> None:
    with pytest.raises(PlexError, match="at most 1"):
        names.check_metrics(pb.KeepAliveRequest(metrics={"a": 1, "b": 2}), CONFIG)


@pytest.mark.parametrize(
    ("job_ids", "names_of"), [((), ()), (("j", "j"), ("a", "a")), (("j", "k"), ("a", "b"))]
)
def test_a_set_is_of_one_job_and_names_each_deployment_once(
    job_ids: tuple[str, ...], names_of: tuple[str, ...]
) -> None:
    asked = pb.CreateDeploymentsRequest(
        job_id="j",
        deployments=[
            pb.CreateDeploymentRequest(job_id=job_id, name=name)
            for job_id, name in zip(job_ids, names_of, strict=True)
        ],
    )
    with pytest.raises(PlexError, match="bad_request"):
        names.check_set(asked)

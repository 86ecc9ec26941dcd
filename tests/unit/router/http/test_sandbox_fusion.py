"""Requests in the form of SandboxFusion: what is asked of the reward service, and what is told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.ids import TenantId
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http.sandbox_fusion import routes
from plexsvc.router.http.server import serving
from plexsvc.router.rewards import Rewards

RUN = {
    "status": "Finished",
    "execution_time": 0.5,
    "return_code": 0,
    "stdout": "3\n",
    "stderr": "",
    "passed": True,
}
RESULT = {"code": "print(3)", "compile": None, "runs": [RUN], "files": {"a": "eA=="}}
PROBLEM = {"test": [{"input": {"stdin": "1"}, "output": {"stdout": "3"}}]}


class FakeRewards:
    """Answers each batch with one result."""

    def __init__(self, reply: pb.ScoreReply) -> None:
        self.reply = reply
        self.asked: list[tuple[pb.ScoreRequest, TenantId]] = []

    async def score(self, request: pb.ScoreRequest, *, tenant: TenantId) -> AsyncGenerator[bytes]:
        self.asked.append((request, tenant))
        yield self.reply.SerializeToString()


def scored(**changed: object) -> FakeRewards:
    files = {"result.json": json.dumps({**RESULT, **changed}).encode()}
    return FakeRewards(pb.ScoreReply(verdict="scored", files=files))


@asynccontextmanager
async def client(rewards: FakeRewards) -> AsyncIterator[aiohttp.ClientSession]:
    config = RouterConfig(http_listen="127.0.0.1:0")
    table = routes(cast("Rewards", rewards))
    headers = {"Authorization": "Bearer secret"}
    async with (
        serving(table, tenants=Tenants({"secret": "acme"}), config=config) as address,
        aiohttp.ClientSession(f"http://{address}", headers=headers) as session,
    ):
        yield session


async def post(rewards: FakeRewards, path: str, body: object) -> tuple[int, dict[str, Any]]:
    async with client(rewards) as http, http.post(path, json=body) as reply:
        return reply.status, await reply.json()


async def test_code_runs_as_a_batch_of_its_tenant() -> None:
    rewards = scored()
    body = {"code": "print(3)", "language": "python", "stdin": "x", "run_timeout": 5}
    status, told = await post(rewards, "/run_code", body)
    assert status == 200
    assert told == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {key: RUN[key] for key in RUN if key != "passed"},
        "executor_pod_name": None,
        "files": {"a": "eA=="},
    }
    ((request, tenant),) = rewards.asked
    assert (tenant, request.program, request.samples[0].text) == ("acme", "run_code", "print(3)")
    reference = json.loads(request.samples[0].reference)
    assert (reference["language"], reference["runs"], reference["run_timeout"]) == (
        "python",
        [{"stdin": "x"}],
        5,
    )
    assert len(request.batch_id) == 16


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"runs": [{**RUN, "return_code": 1}]}, "Failed"),
        ({"runs": [{**RUN, "status": "TimeLimitExceeded", "return_code": None}]}, "Failed"),
        ({"compile": {**RUN, "return_code": 1}, "runs": []}, "Failed"),
        ({"compile": RUN}, "Success"),
    ],
)
async def test_how_it_ended_is_told_in_their_words(changed: dict[str, Any], status: str) -> None:
    _, told = await post(scored(**changed), "/run_code", {"code": "", "language": "cpp"})
    assert told["status"] == status


async def test_without_a_score_the_reason_is_told() -> None:
    rewards = FakeRewards(pb.ScoreReply(verdict="error", detail="language: 'lean' is not run here"))
    status, told = await post(rewards, "/run_code", {"code": "x", "language": "lean"})
    assert (status, told["status"]) == (200, "SandboxError")
    assert told["message"] == "language: 'lean' is not run here"
    _, judged = await post(
        rewards, "/submit", {"id": 1, "completion": "x", "config": {"provided_data": PROBLEM}}
    )
    assert (judged["accepted"], judged["tests"][0]["passed"]) == (False, False)


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_submission_is_judged_by_the_problem_that_comes_with_it(as_text: bool) -> None:
    tests = [*PROBLEM["test"], {"input": {}, "output": {"stdout": ""}}]
    problem = {"test": json.dumps(tests) if as_text else tests}
    runs = [RUN, {**RUN, "passed": False}]
    rewards = scored(runs=runs)
    config = {"provided_data": {**problem, "labels": {"programming_language": "cpp"}}}
    body = {"dataset": "mine", "id": "7", "completion": "```cpp\n```", "config": config}
    status, told = await post(rewards, "/submit", body)
    assert status == 200
    assert (told["id"], told["accepted"]) == ("7", False)
    assert [test["passed"] for test in told["tests"]] == [True, False]
    assert [test["test_info"] for test in told["tests"]] == tests
    assert told["extracted_code"] == "print(3)"
    reference = json.loads(rewards.asked[0][0].samples[0].reference)
    assert (reference["language"], reference["extract"]) == ("cpp", True)
    assert reference["runs"] == [{"stdin": "1", "stdout": "3"}, {"stdin": "", "stdout": ""}]
    assert (await post(scored(), "/submit", body))[1]["accepted"] is True


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/run_code", {"language": "python"}, "code"),
        ("/run_code", {"code": 1, "language": "python"}, "code"),
        ("/run_code", {"code": ""}, "language"),
        ("/submit", {}, "completion"),
        ("/submit", {"completion": "", "dataset": "mbpp"}, "config.provided_data"),
        (
            "/submit",
            {"completion": "", "config": {"dataset_type": "Other", "provided_data": PROBLEM}},
            "config.provided_data",
        ),
        (
            "/submit",
            {"completion": "", "config": {"provided_data": {"test": [{"stdin": 1}]}}},
            "config.provided_data.test",
        ),
        ("/submit", {"completion": "", "config": {"provided_data": {"test": "["}}}, "test"),
        ("/submit", {"completion": "", "config": {"provided_data": {"test": []}}}, "test"),
    ],
)
async def test_what_is_missing_is_refused_by_its_field(path: str, body: object, field: str) -> None:
    rewards = scored()
    status, told = await post(rewards, path, body)
    assert (status, told["error"]["code"]) == (400, "bad_request")
    assert told["error"]["facts"]["field"].endswith(field)
    assert rewards.asked == []

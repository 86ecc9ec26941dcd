"""Routes that clients of SandboxFusion know, `/run_code` and `/submit`, over the reward service.

A request is a batch of one sample of the program `run_code`: queued, bounded and isolated like
every other. `/submit` judges by the problem that comes with the request (`config.provided_data`),
in the form of its CommonOJ data set; this service has no data sets of its own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import bad_request, unavailable
from plexsvc.ids import TenantId
from plexsvc.router.http.fields import text
from plexsvc.router.http.server import TENANT, read_json
from plexsvc.router.rewards import Rewards

JOB: Final = "http"
"""What batches from here are shown as."""
PROGRAM: Final = "run_code"
RESULT: Final = "result.json"
_LIMITS: Final = ("compile_timeout", "run_timeout", "memory_limit_MB")
_BLANK: Final = {"executor_pod_name": None}


def routes(rewards: Rewards) -> list[web.RouteDef]:
    """Return the routes."""

    async def run_code(request: web.Request) -> web.Response:
        asked = await read_json(request)
        code, language = text(asked, "code", least=0, most=None), text(asked, "language", least=0)
        reference = {
            "language": language,
            "runs": [{"stdin": asked.get("stdin")}],
            "files": asked.get("files"),
            "fetch_files": asked.get("fetch_files"),
            **{name: asked.get(name) for name in _LIMITS},
        }
        found = await _run(rewards, code, reference, tenant=request[TENANT])
        return web.json_response(_told(found, found["runs"][0] if found["runs"] else None))

    async def submit(request: web.Request) -> web.Response:
        asked = await read_json(request)
        completion = text(asked, "completion", least=0, most=None)
        reference, tests = _problem(asked)
        found = await _run(rewards, completion, reference, tenant=request[TENANT])
        return web.json_response({"id": asked.get("id"), **_judged(found, tests)})

    return [web.post("/run_code", run_code), web.post("/submit", submit)]


async def _run(
    rewards: Rewards, code: str, reference: Mapping[str, Any], *, tenant: TenantId
) -> dict[str, Any]:
    """Return the program's result; one with `error` where there is none."""
    request = pb.ScoreRequest(
        job_id=JOB,
        batch_id=secrets.token_bytes(16),
        program=PROGRAM,
        batch_size=1,
        samples=[pb.ScoreSample(text=code, reference=json.dumps(reference))],
    )
    async with aclosing(rewards.score(request, tenant=tenant)) as replies:
        async for data in replies:
            reply = pb.ScoreReply.FromString(data)
            if RESULT in reply.files:
                return dict(json.loads(reply.files[RESULT]))
            return {"error": reply.detail, "code": code, "compile": None, "runs": [], "files": {}}
    raise unavailable("the reward service gave no answer; try again")


def _problem(asked: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what runs, and its tests.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    config = asked.get("config")
    config = config if isinstance(config, dict) else {}
    problem = config.get("provided_data")
    kind = config.get("dataset_type") or "CommonOJDataset"
    if kind != "CommonOJDataset" or not isinstance(problem, dict):
        raise bad_request(
            f"config.provided_data: data set {str(asked.get('dataset'))[:80]!r} of type "
            f"{str(kind)[:80]!r} is not kept here; send the problem itself, in the form of "
            "CommonOJDataset",
            field="config.provided_data",
        )
    tests = problem.get("test")
    try:
        tests = json.loads(tests) if isinstance(tests, str) else tests
        runs = [
            {"stdin": test["input"].get("stdin", ""), "stdout": test["output"].get("stdout", "")}
            for test in tests or ()
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise bad_request(
            "config.provided_data.test: it is a list of {input: {stdin}, output: {stdout}}, not "
            f"{str(tests)[:80]!r}: {error!r}",
            field="config.provided_data.test",
        ) from error
    if not runs:
        raise bad_request("config.provided_data.test: it has no tests", field="test")
    labels = problem.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    language = config.get("language") or labels.get("programming_language") or "python"
    limits = {name: config.get(name) for name in _LIMITS}
    return {"language": language, "runs": runs, "extract": True, **limits}, list(tests or ())


def _judged(found: Mapping[str, Any], tests: list[dict[str, Any]]) -> dict[str, Any]:
    runs = found["runs"] or [None]
    return {
        "accepted": bool(found["runs"]) and all(run["passed"] for run in found["runs"]),
        "extracted_code": found["code"],
        "full_code": found["code"],
        "test_code": None,
        "tests": [
            {
                "passed": bool(run and run["passed"]),
                "exec_info": _told(found, run),
                "test_info": test,
            }
            for run, test in zip(runs, tests, strict=False)
        ],
        "extracted_type": None,
        "extra": None,
    }


def _told(found: Mapping[str, Any], run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return one run in the form of the original."""
    steps = [step for step in (found["compile"], run) if step is not None]
    is_well = run is not None and all(
        step["status"] == "Finished" and step["return_code"] == 0 for step in steps
    )
    status = "SandboxError" if "error" in found else "Success" if is_well else "Failed"
    told = None if run is None else {key: run[key] for key in run if key != "passed"}
    return {
        "status": status,
        "message": found.get("error", ""),
        "compile_result": found["compile"],
        "run_result": told,
        "files": found["files"],
        **_BLANK,
    }

"""The Tinker front over HTTP, before a scheduler without devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.control import Control
from plexsvc.router.http.server import serving
from plexsvc.router.http.tinker import records, routes, sessions, training
from plexsvc.router.http.tinker.lanes import Wire
from plexsvc.router.http.tinker.names import Names
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots
from plexsvc.slots import Limit
from tests.fakes.fake_scheduler import FakeScheduler

SAMPLER = {"sampling_session_seq_id": 0, "base_model": "http"}
_DATUM = {"model_input": {"chunks": [{"tokens": [2**70]}]}, "loss_fn_inputs": {}}
BEYOND = {"model_id": "M", "forward_backward_input": {"data": [_DATUM], "loss_fn": "ppo"}}
CREATE = {"model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 0}}


@dataclass
class Rig:
    """A front that may be started again, and a client of it."""

    scheduler: FakeScheduler
    may_run: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[str] = field(default_factory=list)
    base: str = ""
    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    """A call waits, or has waited."""

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        self.is_held.set()
        yield

    async def submit(self, operation: ops.Operation, *, tenant: TenantId) -> ops.OperationResult:
        operation.tenant = tenant
        self.submitted.append(operation.WhichOneof("body") or "")
        await self.may_run.wait()
        return await self.scheduler.submit(operation)

    async def deploy(
        self, request: pb.CreateDeploymentRequest, *, tenant: TenantId
    ) -> pb.Deployment:
        request.tenant = tenant
        return await self.scheduler.CreateDeployment(request, None)

    async def keep_alive(
        self, request: pb.KeepAliveRequest, *, tenant: TenantId
    ) -> pb.KeepAliveReply:
        request.tenant = tenant
        return await self.scheduler.KeepAlive(request, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        clock = SystemClock()
        config = RouterConfig(
            tokens={"tml-mine": "mine", "theirs": "other"},
            http_listen="127.0.0.1:0",
            checkpoint_root=Path("/nowhere"),
            model_roots=(Path(__file__).parents[2],),  # `http` is a directory there
        )
        unused: Any = SimpleNamespace()
        looks = Looks()
        roots = Roots(config, looks)
        front = routes.Front(
            self.scheduler,
            Wire(submit=self.submit, uploads=unused, downloads=unused, clock=clock),
            Names(self.scheduler, roots=roots, looks=looks, clock=clock, secret="S"),
            config=config,
            control=Control(self.scheduler, config=config).forward,
            keep_alive=self.keep_alive,
            deploy=self.deploy,
            hold=self.hold,
        )
        served = serving(front.routes(), tenants=Tenants(config.tokens), config=config)
        async with front.running(), served as self.base:
            yield

    async def ask(self, path: str, body: Any, *, key: str = "tml-mine") -> tuple[int, Any]:
        """Return status and answer of a POST."""
        url, data = f"http://{self.base}/api/v1/{path}", json.dumps(body)
        headers = {"X-API-Key": key, "Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=data, headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    async def future(self, path: str, body: Any) -> Any:
        """Return what a request's future becomes."""
        status, begun = await self.ask(path, body)
        assert status == 200, begun
        return (await self.ask("retrieve_future", {"request_id": begun["request_id"]}))[1]

    async def model(self) -> tuple[str, str]:
        """Return a session and a model of it."""
        _, opened = await self.ask("create_session", {"tags": [], "sdk_version": "1"})
        session_id = opened["session_id"]
        made = await self.future("create_model", CREATE | {"session_id": session_id})
        return session_id, made["model_id"]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig(FakeScheduler())
    made.may_run.set()
    async with made.running():
        yield made


def step(model_id: str, seq: int, **adam: float) -> dict[str, Any]:
    return {"model_id": model_id, "seq_id": seq, "adam_params": adam}


async def test_a_request_that_comes_twice_runs_once_and_another_under_its_number_is_refused(
    rig: Rig,
) -> None:
    _, model = await rig.model()
    for _ in range(2):
        told = await rig.future("optim_step", step(model, 1, learning_rate=0.1))
        assert told["type"] == "optim_step"
    assert rig.submitted == ["noop", "step"]
    status, told = await rig.ask("optim_step", step(model, 1, learning_rate=0.2))
    assert (status, told["error"]["code"]) == (400, "bad_request")


async def test_a_future_that_is_waited_for_in_vain_says_408(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HOLD_S", 0.05)
    _, model = await rig.model()
    rig.may_run.clear()
    _, begun = await rig.ask("optim_step", step(model, 1))
    status, told = await rig.ask("retrieve_future", {"request_id": begun["request_id"]})
    assert (status, told["type"], told["queue_state"]) == (408, "try_again", "active")
    rig.may_run.set()
    assert (await rig.ask("retrieve_future", {"request_id": begun["request_id"]}))[0] == 200


async def test_who_waits_for_a_model_without_devices_is_told_why(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HOLD_S", 0.05)
    _, opened = await rig.ask("create_session", {"tags": [], "sdk_version": "1"})
    rig.may_run.clear()
    _, begun = await rig.ask("create_model", CREATE | {"session_id": opened["session_id"]})
    asked = "retrieve_future", {"request_id": begun["request_id"]}
    status, told = await rig.ask(*asked)
    found = told["queue_state"], told["queue_state_reason"]
    assert (status, found) == (408, ("paused_capacity", "it waits for nothing"))
    (deployment,) = rig.scheduler.deployments.values()
    deployment.blocks.add()
    assert (await rig.ask(*asked))[1]["queue_state"] == "active"


async def test_a_router_that_follows_has_what_was_acknowledged() -> None:
    first = Rig(FakeScheduler())
    first.may_run.set()
    async with first.running():
        session_id, model = await first.model()
        first.may_run.clear()
        _, begun = await first.ask("optim_step", step(model, 1))
    second = Rig(first.scheduler)
    second.may_run.set()
    async with second.running():
        told = (await second.ask("retrieve_future", {"request_id": begun["request_id"]}))[1]
        assert told["type"] == "optim_step"
        assert sorted(second.submitted) == ["noop", "step"]  # again, under their ids
        assert len(first.scheduler.effects) == 2
        info = await second.ask("get_info", {"model_id": model})
        assert info[1]["model_name"] == "tiny"
        others = await second.ask("session_heartbeat", {"session_id": session_id}, key="tml-theirs")
        assert (others[0], others[1]["error"]["code"]) == (404, "not_found")


async def test_an_answer_that_was_read_is_acknowledged_by_the_second_heartbeat(rig: Rig) -> None:
    session_id, model = await rig.model()
    await rig.future("optim_step", step(model, 1))
    for _ in range(2):
        assert (await rig.ask("session_heartbeat", {"session_id": session_id}))[0] == 200
    deployment_id = f"{session_id}/train-0"
    assert [dict(one.acks)[deployment_id] for one in rig.scheduler.beats] == [0, 2]
    assert not [key for _, key in rig.scheduler.kept if "/future/" in key]
    status, told = await rig.ask("retrieve_future", {"request_id": f"{model}:1"})
    assert (status, told["error"]["code"]) == (410, "result_gone")


async def test_a_request_that_is_refused_takes_its_number(rig: Rig) -> None:
    _, model = await rig.model()
    told = await rig.future("optim_step", step(model, 1, momentum=1.0))
    assert told["category"] == "user"
    assert "momentum" in told["error"]
    spoilt: tuple[Any, ...] = (True, [[]], None)
    for seq, wrong in enumerate(spoilt, start=2):
        told = await rig.future("optim_step", step(model, seq) | {"adam_params": wrong})
        assert (told["category"], "adam_params" in told["error"]) == ("user", True)
    await rig.future("optim_step", step(model, 5))
    assert rig.submitted == ["noop"] * 5 + ["step"]


async def test_a_session_that_is_finished_is_forgotten(rig: Rig) -> None:
    session_id, _ = await rig.model()
    done = {"reason": {"type": "success"}, "detail": None}
    assert (await rig.ask(f"sessions/{session_id}/finish", done))[0] == 200
    assert rig.scheduler.jobs[session_id].state == pb.JOB_STATE_COMPLETED
    assert (await rig.ask("session_heartbeat", {"session_id": session_id}))[0] == 404
    assert rig.scheduler.kept == {}


async def test_who_waits_for_a_future_of_a_session_that_ends_is_told(rig: Rig) -> None:
    session_id, model = await rig.model()
    rig.may_run.clear()
    _, begun = await rig.ask("optim_step", step(model, 1))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.ask("retrieve_future", {"request_id": begun["request_id"]}))
        await rig.is_held.wait()
        await rig.ask(f"sessions/{session_id}/finish", {"reason": {"type": "success"}})
    status, told = waiting.result()
    assert (status, told["error"]["code"]) == (410, "job_ended")


async def test_bytes_of_requests_are_bounded_until_their_answers_were_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, model = await rig.model()
    small = Limit(total=8000, what="bytes", key="UNREAD", code=sessions.UNREAD.code)
    monkeypatch.setattr(sessions, "UNREAD", small)
    large = step(model, 1) | {"padding": "x" * 2000}
    await rig.future("optim_step", large)
    status, told = await rig.ask("optim_step", large | {"seq_id": 2})
    assert (status, told["error"]["code"]) == (429, "queue_full")
    for _ in range(2):
        await rig.ask("session_heartbeat", {"session_id": session_id})
    assert (await rig.future("optim_step", large | {"seq_id": 2}))["type"] == "optim_step"


async def test_answers_that_nobody_reads_are_bounded_by_their_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, model = await rig.model()
    small = Limit(total=16_000, what="bytes", key="UNREAD", code=sessions.UNREAD.code)
    monkeypatch.setattr(sessions, "UNREAD", small)
    monkeypatch.setattr(sessions.FutureResult, "nbytes", 3000)
    for seq in (1, 2):
        assert (await rig.future("optim_step", step(model, seq)))["type"] == "optim_step"
    # A third runs, for it is small; its answer finds no room beside those that wait.
    assert "queue_full" in (await rig.future("optim_step", step(model, 3)))["error"]
    for _ in range(2):
        await rig.ask("session_heartbeat", {"session_id": session_id})
    assert (await rig.future("optim_step", step(model, 4)))["type"] == "optim_step"


async def test_what_no_record_can_hold_is_refused_before_it_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = await rig.model()
    monkeypatch.setattr(records, "MAX_BYTES", 1000)
    before = list(rig.submitted)
    status, told = await rig.ask("optim_step", step(model, 1) | {"padding": "x" * 2000})
    assert (status, told["error"]["code"], rig.submitted) == (413, "payload_too_large", before)


async def test_models_of_a_session_are_bounded_and_one_that_is_refused_is_not_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, _ = await rig.model()
    another = CREATE | {"session_id": session_id, "model_seq_id": 1}
    monkeypatch.setattr(training, "MAX_MODELS", 1)
    assert (await rig.ask("create_model", another))[0] == 429
    assert (await rig.ask("create_model", another | {"model_seq_id": 0}))[0] == 200  # it is there
    monkeypatch.setattr(training, "MAX_MODELS", 2)
    monkeypatch.setattr(records, "MAX_BYTES", 10)
    assert (await rig.ask("create_model", another))[0] == 413
    _, told = await rig.ask("get_info", {"model_id": f"{session_id}:train:1"})
    assert told["error"]["code"] == "not_found"


async def test_a_session_that_is_refused_leaves_no_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise PlexError(ErrorCode.QUEUE_FULL, "too many jobs")

    monkeypatch.setattr(rig.scheduler, "CreateJob", refuse)
    status, _ = await rig.ask("create_session", {"tags": [], "sdk_version": "1"})
    assert (status, rig.scheduler.kept) == (429, {})


async def test_a_large_body_is_read_all_the_same(rig: Rig) -> None:
    _, model = await rig.model()
    tokens = {"data": [1] * 40_000, "dtype": "int64"}
    datum = {
        "model_input": {"chunks": [{"tokens": [1] * 40_000}]},
        "loss_fn_inputs": {"target_tokens": tokens, "advantages": tokens},
    }
    given = {"data": [datum], "loss_fn": "cross_entropy"}
    asked = {"model_id": model, "seq_id": 1, "forward_backward_input": given}
    told = await rig.future("forward_backward", asked)
    assert "advantages: cross_entropy takes target_tokens" in told["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("create_model", {"session_id": 3}),
        ("create_model", {"session_id": "S", **CREATE, "lora_config": [1]}),
        ("create_model", {"session_id": "S", **CREATE, "lora_config": {"rank": -4}}),
        ("create_model", {"session_id": "S", **CREATE, "optimizer_config": {"type": "dimuon"}}),
        ("forward_backward", {"model_id": "M", "seq_id": 1}),
        ("forward_backward", {"forward_backward_input": {"data": 3, "loss_fn": "ppo"}}),
        ("optim_step", {"model_id": "M", "seq_id": -1}),
        ("optim_step", {"model_id": "M", "seq_id": True}),
        ("forward_backward", BEYOND),
        ("get_info", {"model_id": "tinker-\U0010ffff"}),
        ("weights_info", {"tinker_path": "tinker://\0/weights/a"}),
        ("create_session", {"user_metadata": {"a": "b" * 65_536}}),
        ("create_model", {"session_id": "S", **CREATE, "base_model": "m" * 2049}),
        ("create_model", {"session_id": "S", **CREATE, "user_metadata": {"a": "b" * 65_536}}),
        ("create_model", {"session_id": "S", **CREATE, "base_model": "another"}),
        ("retrieve_futures", {"target": {"sampling_session_id": "N", "cloned_sampler_id": "x"}}),
        ("create_sampling_session", {"session_id": "S", **SAMPLER, "base_model": "http/tinker"}),
        (
            "create_sampling_session",
            {"session_id": "S", "sampling_session_seq_id": 1, "base_model": "no"},
        ),
        ("asample", {"prompt": 3}),
        ("asample", {"sampling_session_id": "N", "sampling_params": {"top_k": 2**31}}),
        ("asample", {"sampling_session_id": "X", "seq_id": 0}),
        ("retrieve_future", {"request_id": None}),
        ("retrieve_futures", {"target": [1]}),
        ("load_weights", {"path": "tinker://a/weights/b"}),
        ("sessions/S/finish", {"reason": "over"}),
        ("copy_weights", {}),
        ("create_session", [1]),
    ],
)
async def test_what_cannot_be_is_refused_in_json_and_never_as_our_fault(
    rig: Rig, path: str, body: Any
) -> None:
    session_id, model = await rig.model()
    _, made = await rig.ask("create_sampling_session", {"session_id": session_id, **SAMPLER})
    sent = json.dumps(body).replace('"S"', f'"{session_id}"').replace('"M"', f'"{model}"')
    sent = sent.replace('"N"', f'"{made["sampling_session_id"]}"')
    status, told = await rig.ask(path.replace("S", session_id), json.loads(sent))
    assert 400 <= status < 500
    assert told["error"]["message"]


async def test_a_key_is_a_token_with_or_without_what_the_sdk_wants_before_it(rig: Rig) -> None:
    body: dict[str, Any] = {"tags": [], "sdk_version": "1"}
    found = [(await rig.ask("create_session", body, key=key))[0] for key in ("tml-theirs", "no")]
    assert found == [200, 401]

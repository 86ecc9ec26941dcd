"""The Tinker front over HTTP, before a scheduler without devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.ids import TenantId
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.control import Control
from plexsvc.router.http.server import serving
from plexsvc.router.http.tinker import routes
from plexsvc.router.http.tinker.lanes import Wire
from plexsvc.router.http.tinker.names import Names
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots
from plexsvc.slots import Limit, Slots
from tests.fakes.fake_scheduler import FakeScheduler

CREATE = {"model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 0}}


@dataclass
class Rig:
    """A front that may be started again, and a client of it."""

    scheduler: FakeScheduler
    may_run: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[str] = field(default_factory=list)
    base: str = ""

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
            hold=Slots(Limit(total=64, what="calls", key="router.max_calls")).hold,
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
    await rig.future("optim_step", step(model, 2))
    assert rig.submitted == ["noop", "noop", "step"]


async def test_a_session_that_is_finished_is_forgotten(rig: Rig) -> None:
    session_id, _ = await rig.model()
    done = {"reason": {"type": "success"}, "detail": None}
    assert (await rig.ask(f"sessions/{session_id}/finish", done))[0] == 200
    assert rig.scheduler.jobs[session_id].state == pb.JOB_STATE_COMPLETED
    assert (await rig.ask("session_heartbeat", {"session_id": session_id}))[0] == 404
    assert rig.scheduler.kept == {}


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
        ("asample", {"prompt": 3}),
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
    sent = json.dumps(body).replace('"S"', f'"{session_id}"').replace('"M"', f'"{model}"')
    status, told = await rig.ask(path.replace("S", session_id), json.loads(sent))
    assert 400 <= status < 500
    assert told["error"]["message"]


async def test_a_key_is_a_token_with_or_without_what_the_sdk_wants_before_it(rig: Rig) -> None:
    body: dict[str, Any] = {"tags": [], "sdk_version": "1"}
    found = [(await rig.ask("create_session", body, key=key))[0] for key in ("tml-theirs", "no")]
    assert found == [200, 401]

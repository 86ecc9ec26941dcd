"""Nobody without a right: every RPC of every live port refuses; and no port is open too many."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import plexclient as plex
from plexclient.failures import error_of
from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    statemanager_pb2,
    statemanager_pb2_grpc,
)
from plexsvc.errors import ErrorCode
from plexsvc.router.http import metrics, openai, page, sandbox_fusion
from plexsvc.rpc.channels import open_blocking_channel, open_channel
from tests.rigs.keys import FOREIGN, KEYS
from tests.rigs.live_cluster import (
    ROLLOUT,
    TRAIN,
    LiveCluster,
    rewards_address,
    start_cluster,
)
from tests.rigs.processes import descendants
from tests.rigs.strangers import CALL_S, METHODS, SERVICES, Metadata, members_secrets, refusal

pytestmark = [pytest.mark.process, pytest.mark.slow]


TOKENS = """
tokens = { mine = "default", was-mine = "default", rival = "rival" }
router.http_listen = "127.0.0.1:0"
router.token_ends = { was-mine = 2020-01-01T00:00:00Z }
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """A live cluster with an actor and a rollout on one device each, and where its parts serve."""

    live: LiveCluster
    addresses: Mapping[str, str]
    """By service; the `Worker` of a rank."""

    def state(self) -> list[object]:
        """Return what a call with an effect would have changed."""
        with open_blocking_channel(self.addresses["Node"], self.live.keys) as channel:
            node = node_pb2_grpc.NodeStub(channel).Describe(
                node_pb2.NodeDescribeRequest(), timeout=CALL_S
            )
        with open_blocking_channel(self.addresses["StateManager"], self.live.keys) as channel:
            inventory = statemanager_pb2_grpc.StateManagerStub(channel).Inventory(
                statemanager_pb2.InventoryRequest(), timeout=CALL_S
            )
        jobs = [(job.job_id, job.state) for job in self.live.jobs().values()]
        return [node, inventory, jobs]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Ports]:
    nodes = {"only": [TRAIN, ROLLOUT]}
    with (
        start_cluster(tmp_path_factory.mktemp("nobody"), nodes=nodes, extra=TOKENS) as live,
        live.connect() as connection,
        connection.job("held") as job,
    ):
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        rollout.sync(actor)
        rollout.generate([[3, 4, 12]], max_tokens=2)
        address = live.status().nodes[0].address
        wpgs = {d.deployment_id: d.wpg_id for d in live.status().deployments}
        with open_blocking_channel(address.agent, live.keys) as channel:
            procs = (
                node_pb2_grpc.NodeStub(channel)
                .Describe(node_pb2.NodeDescribeRequest(), timeout=CALL_S)
                .procs
            )
        at = {proc.wpg_id: proc.address for proc in procs}
        yield Ports(
            live,
            {
                "Node": address.agent,
                "StateManager": address.state_manager,
                "Worker": at[wpgs[actor.deployment_id]],
                "RolloutInstance": at[wpgs[rollout.deployment_id]],
                "RolloutManager": next(
                    d.executor_address for d in live.status().deployments if d.executor_address
                ),
                "Scheduler": live.scheduler,
                "Reward": rewards_address(live),
                "RewardHost": next(
                    address for wpg, address in at.items() if wpg.startswith("reward-")
                ),
                "RewardPlanner": rewards_address(live).replace("proxy.sock", "planner.sock"),
                "Router": live.address,
            },
        )


async def test_no_rpc_of_any_port_takes_a_caller_without_a_right(ports: Ports) -> None:
    before = ports.state()
    tried = 0
    for service, method in METHODS:
        address = ports.addresses[service.name]
        strangers: dict[str, Metadata] = members_secrets(ports.live.keys)
        strangers["a tenant's token"] = (("authorization", f"Bearer {ports.live.token}"),)
        if service.name == "Router":
            strangers = {
                "nothing": (),
                "a wrong token": (("authorization", "Bearer nobody"),),
                "a token that ended": (("authorization", "Bearer was-mine"),),
                "a member's secret": ports.live.keys.metadata,
            }
        # Over TLS who has no certificate gets no connection (below): these have one, and it is
        # enough, but not beside a secret that is wrong.
        is_tls = service.name == "Scheduler"
        for who in ("nothing", "a tenant's token") if is_tls else ():
            del strangers[who]
        for who, metadata in strangers.items():
            async with open_channel(address, ports.live.keys if is_tls else None) as channel:
                error = await refusal(channel, service, method, metadata)
            assert error.code is ErrorCode.UNAUTHENTICATED, (who, method.full_name, error)
            tried += 1
    assert tried >= 3 * len(METHODS) - len(SERVICES["Scheduler"].methods)
    assert ports.state() == before


NONE: Any = None
HTTP = [
    *openai.routes(NONE),
    *sandbox_fusion.routes(NONE),
    *metrics.routes(NONE, NONE, NONE),
    *page.routes(NONE),
]


async def test_no_path_of_http_takes_a_caller_without_a_right(ports: Ports) -> None:
    before = ports.state()
    strangers = {
        "nothing": None,
        "a wrong token": "Bearer nobody",
        "a token that ended": "Bearer was-mine",
        "no bearer": "mine",
        "a member's secret": f"Bearer {ports.live.keys.secret}",
    }
    async with aiohttp.ClientSession(f"http://{ports.live.http}") as http:
        for route in HTTP:
            path = route.path.replace("{model:.+}", "job/rollout")
            for who, given in strangers.items():
                headers = {} if given is None else {"Authorization": given}
                async with http.request(route.method, path, headers=headers, json={}) as reply:
                    assert reply.status == 401, (who, path)
    assert len(HTTP) >= 9
    assert ports.state() == before


async def test_a_tenants_models_are_not_anothers_over_http(ports: Ports) -> None:
    async with aiohttp.ClientSession(f"http://{ports.live.http}") as http:

        async def ask(token: str, method: str, path: str, **body: object) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            async with http.request(method, path, headers=headers, json=body) as reply:
                return reply.status, await reply.json()

        status, models = await ask("mine", "GET", "/v1/models")
        (model,) = [one["id"] for one in models["data"]]
        assert status == 200
        assert await ask("rival", "GET", "/v1/models") == (200, {"object": "list", "data": []})
        asked = {"model": model, "prompt": [3, 4], "max_tokens": 2}
        assert (await ask("mine", "POST", "/v1/completions", **asked))[0] == 200
        chat = asked | {"messages": [{"role": "user", "content": "hi"}]}
        chat.pop("prompt")
        for method, path, body in (
            ("GET", f"/v1/models/{model}", {}),
            ("POST", "/v1/completions", asked),
            ("POST", "/v1/chat/completions", chat),
        ):
            status, told = await ask("rival", method, path, **body)
            assert (status, told["error"]["code"]) == (404, "model_not_found"), path
            assert told["error"]["message"].endswith("none now"), "another's is not named"


async def test_over_tls_another_clusters_certificate_gets_no_connection(ports: Ports) -> None:
    service = SERVICES["Scheduler"]
    stolen = replace(FOREIGN, secret=ports.live.keys.secret)
    for keys in (None, KEYS, stolen):
        async with open_channel(ports.addresses["Scheduler"], keys) as channel:
            made: Any = channel.unary_unary(f"/{service.full_name}/ListJobs")
            with pytest.raises(grpc.RpcError) as refused:
                await made(b"", timeout=CALL_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_member_of_an_older_epoch_commands_nothing(ports: Ports) -> None:
    before, found = ports.state(), {}
    for service, method in METHODS:
        request: Any = GetMessageClass(method.input_type)()
        fields = request.DESCRIPTOR.fields_by_name
        if service.name == "Router" or not {"fence", "scheduler_epoch"} & set(fields):
            continue
        if "fence" in fields:
            request.fence.SetInParent()  # epoch 0
        for name in {"wpg_id", "proc_id", "job_id"} & set(fields):
            setattr(request, name, _known(ports, service.name, name))
        if "to" in fields:
            request.to = common_pb2.RESIDENCY_HOST
        found[method.full_name] = _answer(ports, service.name, method, request)
    assert set(found.values()) == {"stale_fence"}, found
    assert len(found) >= 10, found
    assert ports.state() == before


def _known(ports: Ports, service: str, field: str) -> str:
    """Return an id that the peer knows."""
    with open_blocking_channel(ports.addresses["Node"], ports.live.keys) as channel:
        procs = (
            node_pb2_grpc.NodeStub(channel)
            .Describe(node_pb2.NodeDescribeRequest(), timeout=CALL_S)
            .procs
        )
    is_rollout = service in {"RolloutInstance", "RolloutManager"}
    address = ports.addresses["RolloutInstance" if is_rollout else "Worker"]
    proc = next(proc for proc in procs if proc.address == address)
    return {"wpg_id": proc.wpg_id, "proc_id": proc.proc_id}.get(
        field, next(iter(ports.live.jobs()))
    )


def _answer(ports: Ports, service: str, method: Any, request: Message) -> str:
    """Return the code of the error that a member's call ends with, in its reply or its status."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    reply_type = GetMessageClass(method.output_type)
    with open_blocking_channel(ports.addresses[service], ports.live.keys) as channel:
        opened: Any = channel
        kind = opened.unary_stream if method.server_streaming else opened.unary_unary
        made = kind(path, type(request).SerializeToString, reply_type.FromString)
        try:
            reply = made(request, timeout=CALL_S)
            if method.server_streaming:
                reply = next(iter(reply))
        except grpc.RpcError as failure:
            return str(error_of(failure, text="").code)
    result = reply.result if "result" in reply.DESCRIPTOR.fields_by_name else reply
    return str(getattr(result, "error", None) and result.error.code)


def test_only_the_router_and_the_port_for_routers_apart_are_on_the_network(ports: Ports) -> None:
    family = {ports.live.pid, *descendants(ports.live.pid)}
    listing = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    ours = [
        line.split()[3].replace("[::ffff:127.0.0.1]", "127.0.0.1")
        for line in listing.splitlines()
        if family & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
    ]
    live = ports.live
    assert sorted(ours) == sorted([live.address, live.scheduler, live.http]), listing

"""The bill of two tenants adds up to what the devices were busy, through a kill of the service."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from tests.rigs import light_nodes
from tests.rigs.live_cluster import TRAIN, Service
from tests.rigs.workloads import PPO_ARGS, Program, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

RIVAL = "ops"
"""A tenant that has a root, too, and no right of an operator here."""

TOKENS = 'tokens = { mine = "default", ops = "ops" }\nrouter.operators = ["default"]\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, nodes={"only": [TRAIN]}, extra=TOKENS) as running:
        yield running


def ask(service: Service, method: str, request: Any, *, token: str = "") -> Any:
    bearer = (("authorization", f"Bearer {token or service.live.token}"),)
    with grpc.insecure_channel(service.live.address) as channel:
        stub = service_pb2_grpc.RouterStub(channel)
        return getattr(stub, method)(request, timeout=30, metadata=bearer)


def costs(service: Service, *, token: str = "", **asked: Any) -> list[service_pb2.Cost]:
    reply = ask(service, "GetCost", service_pb2.CostRequest(**asked), token=token)
    return list(reply.costs)


def still(service: Service) -> tuple[list[service_pb2.Cost], int, int, int]:
    """Return the bill, and what the devices say, from a time when neither changes."""
    pause = threading.Event()
    for _ in range(50):
        before, bill, after = figures(service), costs(service), figures(service)
        if before == after:
            break
        pause.wait(0.2)  # a state is on its way to where its next operation is expected
    else:
        raise AssertionError("the devices did not come to rest")
    return (bill, *after)


def figures(service: Service) -> tuple[int, int, int]:
    devices = service.live.status().devices
    busy_us, switch_us = (
        sum(getattr(d, name) for d in devices) for name in ("busy_us", "switch_us")
    )
    return busy_us, switch_us, sum(device.switches for device in devices)


def deploy(job: plex.Job, model: Path, *, seed: int) -> plex.Actor:
    return job.deploy(
        "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=seed
    )


def test_the_bill_of_two_tenants_adds_up_through_a_kill_and_shows_each_its_own(
    service: Service, tiny_model: Path
) -> None:
    with (
        service.live.connect() as ours,
        plex.connect(service.live.address, token=RIVAL) as theirs,
        ours.job("ours") as first,
        theirs.job("theirs") as second,
    ):
        actors = [deploy(first, tiny_model, seed=1), deploy(second, tiny_model, seed=2)]
        programs = [Program(actor, 3).operations() for actor in actors]
        for _ in range(3):
            for program in programs:
                next(program)
        batch = fixed_batch(9, sequences=64, longest=24)
        under_way = [
            actor.forward_backward.submit(batch, loss="ppo", **PPO_ARGS) for actor in actors
        ]
        service.kill()
        service.start()
        assert all(one.result() for one in under_way)
        for program in programs:
            for _ in program:
                pass
        bill, busy_us, switch_us, switches = still(service)
        for found, expected in (
            (sum(one.device_us for one in bill), busy_us),
            (sum(one.switch_us for one in bill), switch_us),
        ):
            assert expected > 0
            assert abs(found - expected) <= expected / 1000, (found, expected)
        trained = [one for one in bill if one.kind == "forward_backward"]
        assert [(one.owner, one.count) for one in trained] == [("default", 7), (RIVAL, 7)]
        assert all(one.tokens > 0 for one in trained)
        assert all(one.nbytes > one.tokens for one in trained)
        switched = [one.count for one in bill if one.kind == "switch_in"]
        assert sum(switched) == switches
        own, theirs_too = (
            [one for one in found if one.owner == RIVAL and one.kind != "memory"]
            for found in (costs(service, token=RIVAL), bill)
        )
        assert own == theirs_too  # memory is held on
        assert {one.owner for one in costs(service, token=RIVAL)} == {RIVAL}
        assert costs(service, token=RIVAL, owner="default") == []
        assert costs(service, token=RIVAL, job_id=first.job_id) == []
        shown = csv_of(service, "--job", first.job_id, "--since", "1d")
        assert {line["owner"] for line in shown} == {"default"}
        operations = csv_of(service, "--job", first.job_id, "--operations")
        mine = [one for one in bill if one.owner == "default" and one.kind != "memory"]
        for name in ("count", "device_us", "switch_us", "tokens", "nbytes"):
            for one in mine:
                of_kind = [line for line in operations if line["kind"] == one.kind]
                assert sum(int(line[name]) for line in of_kind) == getattr(one, name)
        others = {line["kind"] for line in operations if not line["operation_id"]}
        assert others <= {"switch_in", "switch_out", "memory"}, "all operations are known"
        mine_us = sum(one.device_us for one in bill if one.owner == "default")
        assert sum(int(line["device_us"]) for line in shown) == mine_us


def csv_of(service: Service, *options: str) -> list[dict[str, str]]:
    command = [sys.executable, "-m", "plexsvc.cli.main", "cost", "--csv", *options]
    where = ["--state-dir", str(service.live.state_dir)]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=True)
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture
def light_service(tmp_path: Path) -> Iterator[Service]:
    """One whose node imports no framework: the backend is `noop`."""
    light = light_nodes.environment(tmp_path)
    with Service(tmp_path, nodes={"only": [TRAIN]}, extra=TOKENS, environment=light) as running:
        yield running


def test_a_tenant_that_has_spent_its_cap_is_stopped_by_name(light_service: Service) -> None:
    service = light_service
    quota = service_pb2.SetQuotaRequest(owner=RIVAL, what="spend", most=1)
    ask(service, "SetQuota", quota)

    def spend() -> None:
        with plex.connect(service.live.address, token=RIVAL) as theirs, theirs.job("spends") as job:
            actor = job.deploy("actor", model="", backend="noop", role="actor")
            while True:
                actor.noop()

    with pytest.raises(plex.PlexError, match="over_budget") as stopped:
        spend()
    assert "its cap is 1" in stopped.value.message
    every = service_pb2.ListJobsRequest(include_ended=True)
    (ended,) = ask(service, "ListJobs", every, token=RIVAL).jobs
    assert ended.reason.startswith("over_budget: tenant 'ops' has spent")

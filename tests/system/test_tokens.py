"""Tokens that operators make: used, held to their scope, revoked in mid-stream, kept."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import plexclient as plex
from plexclient.failures import error_of
from plexclient.wire.v1 import operations_pb2, service_pb2, service_pb2_grpc
from plexsvc.cluster.places import keys_file
from tests.rigs import light_nodes
from tests.rigs.live_cluster import TETHERED, TRAIN, Service

pytestmark = [pytest.mark.process, pytest.mark.slow]


QUOTA = ("quota", "set", "lab", "jobs")


def plexctl(service: Service, *arguments: str, token: str = "") -> tuple[Any, str]:
    """Return what a command prints, and what it says is wrong."""
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments, "--json"]
    where = ["--state-dir", str(service.live.state_dir), *(["--token", token] if token else [])]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr


def create(service: Service, scope: str, *options: str) -> tuple[str, str]:
    """Return the id and the secret of a new token of the lab."""
    made, _ = plexctl(service, "token", "create", "lab", "--scope", scope, *options)
    return made["token"]["token_id"], made["secret"]


def refused_job(address: str, secret: str) -> plex.PlexError:
    """Return why one more job is refused; a client would try again for minutes."""
    request = service_pb2.CreateJobRequest(job_id="job-more", name="more")
    bearer = (("authorization", f"Bearer {secret}"),)
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.RouterStub(channel).CreateJob(request, metadata=bearer, timeout=120)
    return error_of(caught.value, text="")


@contextmanager
def router_apart(service: Service, config: Path) -> Iterator[str]:
    """Run a router apart that knows no token of its own; yield its address."""
    config.write_text(
        f'listen = "127.0.0.1:0"\nscheduler = "{service.live.scheduler}"\n'
        f'keys_file = "{keys_file(service.live.state_dir)}"\n'
    )
    command = [*TETHERED, "-m", "plexsvc.router.main", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


@contextmanager
def operating(address: str, secret: str) -> Iterator[Iterator[operations_pb2.OperationResult]]:
    """Hold a stream of operations open that sends none."""

    closed = threading.Event()

    def nothing() -> Iterator[operations_pb2.Operation]:
        closed.wait()
        yield from ()

    with grpc.insecure_channel(address) as channel:
        stream = service_pb2_grpc.RouterStub(channel).Operate(
            nothing(), metadata=(("authorization", f"Bearer {secret}"),), timeout=60
        )
        stream.initial_metadata()
        try:
            yield stream
        finally:
            closed.set()


def test_tokens_are_used_held_to_their_scope_revoked_in_mid_stream_and_kept(
    tmp_path: Path,
) -> None:
    light = light_nodes.environment(tmp_path)
    with Service(tmp_path, nodes={"only": [TRAIN]}, environment=light) as service:
        address = service.live.address
        _, reading = create(service, "read", "--name", "dashboard")
        token_id, working = create(service, "submit", "--expires", "30d")
        _, operator = create(service, "admin")
        with plex.connect(address, token=working) as lab, lab.job("math") as job:
            job.deploy("actor", model="", backend="noop", role="actor").noop()
            seen, _ = plexctl(service, "status", token=reading)
            assert [one["job_id"] for one in seen["jobs"]] == [job.job_id]
            assert "would shut tenant 'lab' out" in plexctl(service, *QUOTA, "0")[1]
            quotas = [{"owner": "lab", "what": "jobs", "most": "1", "used": "1"}]
            assert plexctl(service, *QUOTA, "1")[0]["quotas"] == quotas
            assert "its quota is 1" in refused_job(address, working).message
            plexctl(service, "quota", "set", "lab", "requests", "1")
            found = [refused_job(address, working).message for _ in range(9)]
            assert any("made 1 requests within a second" in one for one in found)
            plexctl(service, "quota", "lift", "lab", "requests")
        with (
            plex.connect(address, token=reading) as lab,
            pytest.raises(plex.PlexError) as caught,
            lab.job("other"),
        ):
            raise AssertionError("the job began")
        assert "may only read, and CreateJob does more" in caught.value.message
        seen, _ = plexctl(service, "status", token=reading)
        assert [one["name"] for one in seen["jobs"]] == ["math"]
        for secret in (reading, working):
            refused = plexctl(service, "token", "create", "lab", token=secret)
            assert "forbidden" in refused[1]
        with (
            router_apart(service, tmp_path / "router.toml") as apart,
            operating(address, working) as here,
            operating(apart, working) as there,
        ):
            assert plexctl(service, "token", "revoke", token_id, token=operator)[0]["revoked_us"]
            for stream in (here, there):
                with pytest.raises(grpc.RpcError) as ended:
                    next(stream)
                error = error_of(ended.value, text="")
                assert error.code == "unauthenticated"
                assert f"token {token_id} of tenant 'lab' was revoked" in error.message
        before = [plexctl(service, kind, "list") for kind in ("token", "quota")]
        assert working not in str(before)
        service.kill()
        service.start()
        assert [plexctl(service, kind, "list") for kind in ("token", "quota")] == before
        assert "was revoked" in plexctl(service, "status", token=working)[1]
        assert plexctl(service, "status", token=reading)[0] is not None

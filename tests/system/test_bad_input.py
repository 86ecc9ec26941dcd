"""Bad input gets a typed error that says what to do, and costs nobody else anything."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import plexclient as plex
from plexclient.ids import new_operation_id
from plexclient.wire import tensors
from plexclient.wire.v1 import operations_pb2
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.raw_client import RawClient
from tests.rigs.workloads import VOCAB, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass(frozen=True, slots=True)
class Victims:
    """A job with a deployment under attack, one beside it, and a careless client."""

    job: plex.Job
    actor: plex.Actor
    attacked: plex.Actor
    raw: RawClient


@pytest.fixture(scope="module")
def victims(cluster: LiveCluster, tiny_model: Path) -> Iterator[Victims]:
    with (
        cluster.connect() as connection,
        connection.job("bad-input") as job,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        deployments = [
            job.deploy(
                name,
                role="actor",
                model=str(tiny_model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-3),
            )
            for name in ("bystander", "attacked")
        ]
        raw = RawClient(channel, cluster.token, job.job_id, deployments[1].deployment_id)
        yield Victims(job, deployments[0], deployments[1], raw)


def still_works(victims: Victims) -> bool:
    """Whether the bystander answers, and the attacked deployment its next good operation."""
    operation, data = victims.raw.operation(raw_arrays(), forward=operations_pb2.Forward())
    victims.raw.submit(operation, data)
    return bool(np.isfinite(victims.actor.forward(fixed_batch(3)).logprobs).all())


def raw_arrays(**changes: np.ndarray) -> dict[str, Any]:
    return {**fixed_batch(3).arrays(), **changes}


def nan_advantages() -> dict[str, Any]:
    advantages = np.array(fixed_batch(3).advantages)
    advantages[3] = np.nan
    return raw_arrays(advantages=advantages)


def foreign_token() -> dict[str, Any]:
    tokens = np.array(fixed_batch(3).tokens)
    tokens[2] = VOCAB
    return raw_arrays(tokens=tokens)


def short_mask() -> dict[str, Any]:
    return raw_arrays(mask=fixed_batch(3).arrays()["mask"][:-1])


def overlong() -> dict[str, Any]:
    total = 600
    return raw_arrays(
        cu_seqlens=np.array([0, total], np.int32),
        tokens=np.ones(total, np.int32),
        target_tokens=np.ones(total, np.int32),
        weights=np.ones(total, np.float32),
        logprobs=np.zeros(total, np.float32),
        advantages=np.zeros(total, np.float32),
        mask=np.ones(total, np.float32),
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (nan_advantages, "advantages"),
        (foreign_token, "tokens"),
        (short_mask, "mask"),
        (overlong, "512"),
    ],
)
def test_a_bad_batch_is_refused_by_name_and_the_next_good_one_runs(
    victims: Victims, make: Callable[[], dict[str, Any]], named: str
) -> None:
    body = operations_pb2.ForwardBackward(loss="ppo")
    operation, data = victims.raw.operation(make(), forward_backward=body)
    with pytest.raises(plex.PlexError) as caught:
        victims.raw.submit(operation, data)
    assert caught.value.code == "bad_batch"
    assert named in caught.value.message
    assert still_works(victims)


def test_a_large_bad_batch_is_refused_where_it_lands(victims: Victims) -> None:
    arrays = fixed_batch(4, sequences=800, longest=40).arrays()
    arrays["advantages"] = arrays["advantages"].copy()
    arrays["advantages"][77] = np.inf
    body = operations_pb2.ForwardBackward(loss="ppo")
    operation, data = victims.raw.operation(arrays, forward_backward=body)
    assert len(data) > tensors.INLINE_PAYLOAD_BYTES
    with pytest.raises(plex.PlexError) as caught:
        victims.raw.submit(operation, data)
    assert caught.value.code == "bad_batch"
    assert "advantages" in caught.value.message
    assert still_works(victims)


def test_an_unknown_loss_lists_the_known_ones(victims: Victims) -> None:
    body = operations_pb2.ForwardBackward(loss="pp0")
    operation, data = victims.raw.operation(raw_arrays(), forward_backward=body)
    with pytest.raises(plex.PlexError) as caught:
        victims.raw.submit(operation, data)
    assert caught.value.code == "unknown_loss"
    assert "ppo" in caught.value.message
    assert "cross_entropy" in caught.value.message
    assert still_works(victims)


def test_an_unknown_model_directory_is_refused(victims: Victims, tmp_path: Path) -> None:
    with pytest.raises(plex.PlexError) as caught:
        victims.job.deploy(
            "ghost", model=str(tmp_path / "nowhere"), backend="megatron", role="actor"
        )
    assert caught.value.code == "unknown_model"
    assert "nowhere" in caught.value.message
    assert still_works(victims)


def test_a_sequence_number_used_twice_by_different_operations_is_refused(victims: Victims) -> None:
    first, _ = victims.raw.operation(zero_grad=operations_pb2.ZeroGrad())
    victims.raw.submit(first)
    second = operations_pb2.Operation()
    second.CopyFrom(first)
    second.operation_id = new_operation_id()
    with pytest.raises(plex.PlexError) as caught:
        victims.raw.submit(second)
    assert caught.value.code == "stale_sequence"
    assert victims.raw.submit(first).operation_id == first.operation_id
    assert still_works(victims)


def test_an_operation_of_an_unknown_job_is_not_found(victims: Victims) -> None:
    operation, _ = victims.raw.operation(zero_grad=operations_pb2.ZeroGrad())
    stranger = operations_pb2.Operation()
    stranger.CopyFrom(operation)
    stranger.job_id = "job-000000000000"
    stranger.operation_id = new_operation_id()
    with pytest.raises(plex.PlexError) as caught:
        victims.raw.submit(stranger)
    assert caught.value.code == "not_found"
    victims.raw.submit(operation)


def test_a_wrong_token_is_unauthenticated(cluster: LiveCluster) -> None:
    with (
        pytest.raises(plex.PlexError) as caught,
        plex.connect(cluster.address, token="wrong") as connection,
        connection.job("stranger"),
    ):
        raise AssertionError("a job was made with a wrong token")
    assert caught.value.code == "unauthenticated"


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 70000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff"],
    ids=["http1", "zeros", "broken-http2"],
)
def test_garbage_on_the_port_disturbs_nobody(
    cluster: LiveCluster, victims: Victims, garbage: bytes
) -> None:
    host, port = cluster.address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=120) as raw,
        contextlib.suppress(ConnectionError),
    ):
        raw.sendall(garbage)
    assert still_works(victims)

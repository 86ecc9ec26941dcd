"""Payloads and results in staging memory: bounded, validated, private to their job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from plexclient.wire import tensors
from plexclient.wire.v1 import service_pb2, statemanager_pb2
from plexsvc.errors import PlexError
from plexsvc.rpc.errors import error_from
from tests.rigs.state_daemon import Daemon

pytestmark = pytest.mark.process

OPERATION = b"o" * 16
RULES = service_pb2.BatchRules(
    vocab_size=100, max_sequence_length=8, required=["tokens", "cu_seqlens"]
)


def batch(**changes: np.ndarray) -> dict[str, np.ndarray]:
    arrays = {
        "cu_seqlens": np.array([0, 4, 10], np.int32),
        "tokens": np.arange(10, dtype=np.int32),
        "advantages": np.ones(10, np.float32),
    }
    return {**arrays, **changes}


def requests(
    arrays: Mapping[str, np.ndarray],
    *,
    operation_id: bytes = OPERATION,
    rules: service_pb2.BatchRules = RULES,
) -> Iterator[service_pb2.StageRequest]:
    bundle = tensors.encode(arrays)
    header = service_pb2.StageHeader(
        operation_id=operation_id,
        job_id="job",
        tensors=bundle.tensors,
        nbytes=len(bundle.data),
        rules=rules,
    )
    yield service_pb2.StageRequest(header=header)
    for chunk in tensors.chunks([memoryview(bundle.data)]):
        yield service_pb2.StageRequest(chunk=chunk)


def stage(
    daemon: Daemon,
    arrays: Mapping[str, np.ndarray],
    *,
    operation_id: bytes = OPERATION,
    rules: service_pb2.BatchRules = RULES,
) -> service_pb2.StageReply:
    sent = requests(arrays, operation_id=operation_id, rules=rules)
    return daemon.stub.Stage(sent, timeout=120)


def drop(daemon: Daemon, **fields: Any) -> int:
    request = statemanager_pb2.DropStagedRequest(**{"job_id": "job"} | fields)
    return daemon.stub.DropStaged(request, timeout=120).freed_bytes


def read(daemon: Daemon, staging_id: bytes, offset: int = 0) -> bytes:
    request = statemanager_pb2.ReadStagedRequest(staging_id=staging_id, offset=offset, job_id="job")
    try:
        return b"".join(chunk.data for chunk in daemon.stub.ReadStaged(request, timeout=120))
    except grpc.RpcError as error:
        raise error_from(error) from error


def test_a_rank_of_the_job_maps_what_was_staged(daemon: Daemon) -> None:
    reply = stage(daemon, batch())
    assert reply.error.code == ""
    opened = daemon.client("a")("open_staged", staging_id=OPERATION.hex())
    data = tensors.encode(batch()).data
    assert opened["names"] == ["cu_seqlens", "tokens", "advantages"]
    assert (opened["sha256"], opened["nbytes"]) == (hashlib.sha256(data).hexdigest(), reply.nbytes)
    with pytest.raises(PlexError, match="not_found"):
        daemon.client("b", job_id="other")("open_staged", staging_id=OPERATION.hex())


def test_a_finished_upload_is_answered_at_once_when_repeated(daemon: Daemon) -> None:
    first = stage(daemon, batch())
    assert stage(daemon, batch()) == first
    assert daemon.inventory().staging_bytes_used == first.nbytes
    assert drop(daemon, staging_ids=[OPERATION]) == first.nbytes
    assert drop(daemon, staging_ids=[OPERATION]) == 0


@pytest.mark.parametrize(
    ("changes", "array", "position"),
    [
        ({"tokens": np.array([0, 1, 2, 3, 4, 5, 6, 100, 8, 9], np.int32)}, "tokens", "7"),
        ({"advantages": np.array([1, np.nan, *[1] * 8], np.float32)}, "advantages", "1"),
        ({"advantages": np.ones(9, np.float32)}, "advantages", None),
        ({"cu_seqlens": np.array([0, 10], np.int32)}, "cu_seqlens", "0"),
        ({"cu_seqlens": np.array([0, 6, 4, 10], np.int32)}, "cu_seqlens", "1"),
    ],
)
def test_a_bad_batch_is_refused_by_name_and_position_and_leaves_nothing(
    daemon: Daemon, changes: dict[str, np.ndarray], array: str, position: str | None
) -> None:
    error = stage(daemon, batch(**changes)).error
    assert error.code == "bad_batch"
    assert (error.facts["array"], error.facts.get("position")) == (array, position)
    assert daemon.inventory().staging_bytes_used == 0


def test_a_client_that_gives_up_leaves_nothing_and_may_start_again(daemon: Daemon) -> None:
    def cut_short() -> Iterator[service_pb2.StageRequest]:
        parts = requests(batch())
        yield next(parts)
        raise ConnectionError("the client went away")

    with pytest.raises(grpc.RpcError):
        daemon.stub.Stage(cut_short(), timeout=120)
    assert stage(daemon, batch()).error.code == ""
    assert daemon.inventory().staging_bytes_used == stage(daemon, batch()).nbytes


def test_a_stream_that_ends_early_is_refused(daemon: Daemon) -> None:
    reply = daemon.stub.Stage(iter([next(requests(batch()))]), timeout=120)
    assert "ended after 0 of" in reply.error.message
    assert daemon.inventory().staging_bytes_used == 0


def test_staging_memory_is_bounded(daemon: Daemon) -> None:
    half = {"advantages": np.zeros(300_000 // 4, np.float32)}
    huge = {"advantages": np.zeros(2 << 20, np.uint8)}
    free = service_pb2.BatchRules()
    assert stage(daemon, half, operation_id=b"1" * 16, rules=free).error.code == ""
    full = stage(daemon, half, operation_id=b"2" * 16, rules=free).error
    assert (full.code, full.retryable) == ("staging_full", True)
    too_large = stage(daemon, huge, operation_id=b"3" * 16, rules=free).error
    assert (too_large.code, too_large.retryable) == ("payload_too_large", False)
    assert drop(daemon, job_id="job") >= 300_000
    assert stage(daemon, half, operation_id=b"2" * 16, rules=free).error.code == ""


def test_a_result_is_read_once_sealed_and_from_any_offset(daemon: Daemon) -> None:
    rank = daemon.client("a")
    open_id = rank("create_staged", text="unfinished", seal=False)
    with pytest.raises(PlexError, match="still being written"):
        read(daemon, bytes.fromhex(open_id))
    sealed_id = rank("create_staged", text="finished", seal=True)
    assert read(daemon, bytes.fromhex(sealed_id)) == b"finished"
    assert read(daemon, bytes.fromhex(sealed_id), offset=5) == b"hed"


def test_a_rank_gives_back_what_its_job_staged_and_nothing_else(daemon: Daemon) -> None:
    rank, stranger = daemon.client("a"), daemon.client("b", job_id="other")
    reserved = rank("create_staged", text="reserved", seal=False)
    nbytes = stage(daemon, batch()).nbytes
    for staging_id in (reserved, OPERATION.hex(), "00"):
        stranger("drop_staged", staging_id=staging_id)
    assert daemon.inventory().staging_bytes_used == nbytes + len("reserved")
    for staging_id in (reserved, OPERATION.hex(), OPERATION.hex()):
        rank("drop_staged", staging_id=staging_id)
    assert daemon.inventory().staging_bytes_used == 0
    assert stage(daemon, batch()).nbytes == nbytes


def test_a_client_that_dies_drops_its_unfinished_results_only(daemon: Daemon) -> None:
    rank = daemon.client("a")
    rank("create_staged", text="unfinished", seal=False)
    sealed_id = rank("create_staged", text="finished", seal=True)
    rank.process.kill()
    rank.process.wait()
    daemon.stub.Forget(statemanager_pb2.ForgetRequest(wpg_id="a"), timeout=120)
    assert daemon.inventory().staging_bytes_used == len("finished")
    assert read(daemon, bytes.fromhex(sealed_id)) == b"finished"

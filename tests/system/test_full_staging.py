"""A node's staging memory that is full: what is refused counts once later, others have room."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

import plexclient as plex
from plexclient.errors import ErrorCode
from plexclient.wire.v1 import operations_pb2
from tests.rigs.live_cluster import SHARES_ALL, TRAIN, start_cluster
from tests.rigs.raw_client import PlexError, RawClient
from tests.rigs.tiny_models import make_qwen3

pytestmark = [pytest.mark.process, pytest.mark.slow]

LENGTH, SEQUENCES, CALLS = 500, 34, 6
STAGING_BYTES = 560_000
"""Room for one batch of 204,000 bytes and two answers of 68,000, of one tenant."""
RARELY = plex.ClientOptions(keepalive_s=12.0)
"""Answers lie on the node until a keepalive acknowledges them: more than two of them by then."""


def test_gradients_count_once_where_answers_wait_for_room(tmp_path: Path) -> None:
    model = make_qwen3(tmp_path / "model", seed=0)
    rng = np.random.default_rng(0)
    batch = plex.Batch.from_sequences(rng.integers(2, 50, (SEQUENCES, LENGTH + 1)).tolist())
    with (
        start_cluster(tmp_path, nodes={"node-a": [TRAIN]}, staging_bytes=STAGING_BYTES) as live,
        plex.connect(live.address, token=live.token, options=RARELY) as connection,
        connection.job("full") as job,
    ):
        actor = job.deploy(
            "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=0.0)
        )
        actor.forward_backward(batch, loss="cross_entropy")
        once = actor.step()["grad_norm"]
        calls = [
            actor.forward_backward.submit(batch, loss="cross_entropy", return_logprobs=True)
            for _ in range(CALLS)
        ]
        answers = [call.result(120).logprobs for call in calls]
        found = actor.step()["grad_norm"]
    log = (tmp_path / "up.log").read_text()
    assert "staging_full" in log, "no operation was refused: the test shows nothing"
    for logprobs in answers:
        np.testing.assert_array_equal(logprobs, answers[0])
    assert found == pytest.approx(CALLS * once, rel=1e-3)


def test_a_tenant_that_fills_staging_memory_holds_up_no_neighbour(tmp_path: Path) -> None:
    """It uploads for operations that it never submits; the neighbour's batch finds room at once."""
    model = make_qwen3(tmp_path / "model", seed=0)
    batch = plex.Batch.from_sequences([[3] * (LENGTH + 1)] * SEQUENCES)
    tenants = f'{SHARES_ALL}\n[tokens]\n"{"n" * 32}" = "default"\n"{"g" * 32}" = "ops"\n'
    with ExitStack() as stack:
        nodes, most = {"node-a": [TRAIN]}, 4 * STAGING_BYTES
        live = stack.enter_context(
            start_cluster(tmp_path, nodes=nodes, staging_bytes=most, scheduler=tenants)
        )
        actors = []
        for token in ("n" * 32, "g" * 32):
            connection = stack.enter_context(plex.connect(live.address, token=token))
            job = stack.enter_context(connection.job("job"))
            actors.append(job.deploy("actor", model=str(model), backend="megatron"))
        neighbour, greedy = actors
        channel = stack.enter_context(grpc.insecure_channel(live.address))
        raw = RawClient(channel, "g" * 32, greedy.job_session.job_id, greedy.deployment_id)
        refused = fill(raw, batch, times=most // 204_000 + 1)
        assert (refused.code, refused.retryable) == (ErrorCode.STAGING_FULL, True)
        assert "tenant 'ops'" in refused.message
        assert len(neighbour.forward(batch).logprobs) == LENGTH * SEQUENCES


def fill(raw: RawClient, batch: plex.Batch, *, times: int) -> PlexError:
    """Stage a batch for operations that never come, until it is refused."""
    for _ in range(times):
        operation, data = raw.operation(batch.arrays(), forward=operations_pb2.Forward())
        try:
            raw.stage(operation, data)
        except PlexError as refused:
            return refused
    raise AssertionError(f"{times} uploads were accepted")

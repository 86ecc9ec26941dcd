"""Promise 9 on a node whose staging memory is full: what is refused for now counts once later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import TRAIN, start_cluster
from tests.rigs.tiny_models import make_qwen3

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

LENGTH, SEQUENCES, CALLS = 500, 34, 6
STAGING_BYTES = 400_000
"""Room for one batch of 204,000 bytes and two answers of 68,000."""
RARELY = plex.ClientOptions(keepalive_s=5.0)
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

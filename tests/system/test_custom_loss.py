"""forward + backward with client-made gradients equals the built-in loss it imitates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]


def trained(job: plex.Job, name: str, model: Path, *, custom: bool) -> np.ndarray:
    actor = job.deploy(
        name, role="actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
    )
    batch = fixed_batch(5)
    if custom:
        logprobs = actor.forward(batch).logprobs
        ratio = np.exp(logprobs - batch.logprobs)
        actor.backward(batch, (-ratio * batch.advantages * batch.mask).astype(np.float32))
    else:
        actor.forward_backward(batch, loss="importance_sampling")
    norm = actor.step().metrics["grad_norm"]
    return np.concatenate([[norm], actor.forward(fixed_batch(6)).logprobs])


def test_a_loss_differentiated_by_the_client_trains_like_the_built_in(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("custom-loss") as job:
        built_in = trained(job, "built-in", tiny_model, custom=False)
        own = trained(job, "own", tiny_model, custom=True)
    assert np.abs(built_in[0] - own[0]) <= 1e-5 * built_in[0]
    assert np.abs(built_in - own).max() <= 2e-4

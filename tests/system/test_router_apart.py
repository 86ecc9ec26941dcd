"""A router in a process of its own: whatever goes through the embedded one goes through it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from plexclient.wire import tensors
from plexsvc.cluster.places import keys_file
from tests.rigs.live_cluster import ROOT, TETHERED, LiveCluster
from tests.rigs.workloads import PPO_ARGS, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOKEN = "apart"
PROMPTS = [[3, 4, 12, 5, 16], [7, 7, 12, 9, 16, 3]]


@pytest.fixture
def routers(cluster: LiveCluster, tmp_path: Path) -> Iterator[list[str]]:
    """Addresses of two routers apart, before the same scheduler."""
    config = tmp_path / "router.toml"
    config.write_text(
        f'listen = "127.0.0.1:0"\nscheduler = "{cluster.scheduler}"\n'
        f'keys_file = "{keys_file(cluster.state_dir)}"\n'
        f'[tokens]\n{TOKEN} = "default"\n[roots]\ndefault = ["{ROOT}"]\n'
    )
    command = [*TETHERED, "-m", "plexsvc.router.main", "--config", str(config)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield [json.loads(_first_line(process))["address"] for process in running]
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=120)


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_loop_runs_through_a_router_apart_and_another_replica_goes_on(
    cluster: LiveCluster, tiny_model: Path, routers: list[str]
) -> None:
    large = fixed_batch(1, sequences=120, longest=60)
    assert sum(a.nbytes for a in large.arrays().values()) > tensors.INLINE_PAYLOAD_BYTES
    with plex.connect(routers[0], token=TOKEN) as connection, connection.job("apart") as job:
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        trained = actor.forward_backward(large, loss="ppo", return_logprobs=True, **PPO_ARGS)
        assert trained.logprobs is not None
        assert np.isfinite(trained.logprobs).all()
        actor.step()
        version = rollout.sync(actor)
        samples = rollout.generate(PROMPTS, n=3, max_tokens=12, seed=2)
        assert {v for sample in samples for v in sample.versions} == {version}
        batch = plex.Batch.from_samples(samples, advantages=np.zeros(len(samples)))
        gap = np.abs(actor.forward(batch).logprobs - batch.logprobs)[batch.mask > 0]
        assert gap.max() <= 1e-3
        text = rollout.generate(["12+3="], n=1, max_tokens=4, seed=0)
        assert isinstance(text[0].text, str)
        with plex.connect(routers[1], token=TOKEN) as other:
            assert job.job_id in {seen.job_id for seen in other.status().jobs}
        told = {d.deployment_id: d.executor_address for d in cluster.status().deployments}
        assert told[rollout.deployment_id].startswith("unix:")

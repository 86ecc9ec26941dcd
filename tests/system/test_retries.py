"""Promise 5: over a line that is cut and doubled at random bytes, a whole loop changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from plexclient.wire import tensors
from tests.rigs.chaos_proxy import Faults, running_proxy
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.workloads import PPO_ARGS, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

SEEDS = (1, 2, 3, 4)
BAD = Faults(cut_mean_bytes=1_500, duplicate_mean_bytes=800, delay_share=0.05, delay_max_s=0.005)
"""A line on which few connections carry more than one or two calls."""
WIDE = Faults(cut_mean_bytes=60_000, duplicate_mean_bytes=15_000)
"""A line that carries a large batch at the third try or so."""
PROMPTS = [[3, 4, 12, 5, 16], [7, 7, 12, 9, 16, 3]]
NUM_STEPS = 3
Turn = Callable[[Faults], None]
"""Changes how bad the line is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that the program's controller sees."""

    metrics: list[dict[str, float]]
    version: int
    tokens: list[list[int]]
    sampled_logprobs: list[list[float]]
    logprobs: list[float]
    saved: dict[str, bytes]
    digest: dict[str, str]
    device_kinds: Counter[str]


def training_batch(step: int) -> plex.Batch:
    """Return the step's batch; the second is too large to travel inline."""
    batch = fixed_batch(step, sequences=92, longest=60) if step == 1 else fixed_batch(step)
    nbytes = sum(array.nbytes for array in batch.arrays().values())
    assert (nbytes > tensors.INLINE_PAYLOAD_BYTES) == (step == 1)
    return batch


def train(actor: plex.Actor) -> list[dict[str, float]]:
    """Train with all calls in flight at once; return their metrics in order."""
    calls: list[Future[Any]] = []
    for step in range(NUM_STEPS):
        calls.append(actor.forward_backward.submit(training_batch(step), loss="ppo", **PPO_ARGS))
        calls.append(actor.step.submit(lr=1e-2))
    return [call.result(120).metrics for call in calls]


def run_program(
    live: LiveCluster, address: str, *, model: Path, directory: Path, turn: Turn
) -> Outcome:
    """Run the fixed loop through `address`; look at the devices over a good line."""
    with plex.connect(address, token=live.token) as connection, connection.job("retries") as job:
        actor = job.deploy(
            "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        turn(WIDE)
        metrics = train(actor)
        turn(BAD)
        version = rollout.sync(actor)
        samples = rollout.generate(PROMPTS, n=3, max_tokens=24, temperature=1.0, seed=5)
        logprobs = actor.forward(fixed_batch(8)).logprobs
        actor.save(directory)
        actor.load(directory, optimizer=True)
        digest = actor.digest()
        spans = live.timeline()
    return Outcome(
        metrics=metrics,
        version=version,
        tokens=[list(sample.tokens) for sample in samples],
        sampled_logprobs=[list(sample.logprobs) for sample in samples],
        logprobs=logprobs.tolist(),
        saved={path.name: path.read_bytes() for path in sorted(directory.iterdir())},
        digest=digest,
        device_kinds=Counter(s.kind for s in spans if s.deployment_id == actor.deployment_id),
    )


@pytest.fixture(scope="module")
def undisturbed(
    cluster: LiveCluster, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """The program over a good line."""
    return run_program(
        cluster,
        cluster.address,
        model=tiny_model,
        directory=tmp_path_factory.mktemp("good") / "saved",
        turn=lambda _: None,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_over_a_bad_line_has_the_results_of_a_good_one(
    cluster: LiveCluster, tiny_model: Path, undisturbed: Outcome, tmp_path: Path, seed: int
) -> None:
    with running_proxy(cluster.address, seed=seed, faults=BAD) as proxy:
        found = run_program(
            cluster,
            proxy.address,
            model=tiny_model,
            directory=tmp_path / "saved",
            turn=proxy.turn,
        )
    assert proxy.counts.cuts >= 3, "the line was not bad enough to show anything"
    assert proxy.counts.duplicates >= 3, "the line was not bad enough to show anything"
    assert [m["steps"] for m in found.metrics if "steps" in m] == [1, 2, 3]
    assert found.device_kinds == undisturbed.device_kinds
    assert found.metrics == undisturbed.metrics
    assert found.version == undisturbed.version
    assert found.tokens == undisturbed.tokens
    for mine, theirs in zip(found.sampled_logprobs, undisturbed.sampled_logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert found.logprobs == undisturbed.logprobs
    assert found.digest == undisturbed.digest
    assert found.saved.keys() == undisturbed.saved.keys()
    assert found.saved == undisturbed.saved

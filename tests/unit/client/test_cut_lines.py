"""Retrying changes nothing: TCP is cut and duplicated at random bytes under a whole RL loop."""

from __future__ import annotations

import numpy as np
import pytest

import plexclient as plex
from tests.fakes.fake_router import TOKEN, FakeRouter, fake_logprobs, fake_tokens
from tests.rigs.chaos_proxy import Faults, running_proxy

pytestmark = [pytest.mark.process, pytest.mark.slow]

FAULTS = Faults(cut_mean_bytes=150_000, duplicate_mean_bytes=60_000, delay_share=0.05)
PROMPTS = [[1, 2, 3], [4, 5]]
STEPS = 6


def rl_loop(job: plex.Job) -> None:
    actor = job.deploy("actor", model="/model", backend="noop", optimizer=plex.AdamW())
    rollout = job.deploy("rollout", model=actor, backend="vllm")
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        version = rollout.sync(actor)
        samples = rollout.generate(PROMPTS, n=2, max_tokens=40)
        assert [s.tokens for s in samples] == [
            fake_tokens(p, i, 40) for p in PROMPTS for i in (0, 1)
        ]
        assert {v for s in samples for v in s.versions} == {version}
        large = plex.Batch(
            tokens=rng.integers(0, 50, 12_000).astype(np.int32),
            cu_seqlens=np.linspace(0, 12_000, 30).astype(np.int32),
            target_tokens=rng.integers(0, 50, 12_000).astype(np.int32),
        )
        expected = fake_logprobs(large.tokens, large.target_tokens)
        np.testing.assert_array_equal(actor.forward(large).logprobs, expected)
        batch = plex.Batch.from_samples(
            samples, advantages=plex.grpo_advantages([0, 1] * 2, group=2)
        )
        training = actor.forward_backward.submit(batch, loss="ppo", clip=0.2)
        assert actor.step(lr=float(step))["lr"] == step
        training.result()


@pytest.mark.parametrize("seed", range(5))
def test_a_whole_loop_over_a_bad_line_runs_every_operation_once_in_order(
    router: FakeRouter, seed: int
) -> None:
    router.stage_results = True
    with running_proxy(router.address, seed=seed, faults=FAULTS) as proxy:
        with plex.connect(proxy.address, token=TOKEN) as cluster, cluster.job("chaos") as job:
            rl_loop(job)
            deployment = f"{job.job_id}/actor"
        assert proxy.counts.cuts > 0, "the line was not bad enough to show anything"
    one_step = ["publish", "forward", "forward_backward", "step"]
    applied = router.lanes[deployment].applied
    assert applied == list(enumerate(one_step * STEPS, start=1))
    rollout = [kind for name, kind in router.order if name == "rollout"]
    assert rollout == ["pull", "generate"] * STEPS

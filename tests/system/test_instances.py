"""A rollout deployment outlives its instances, and serves the weights of its last source."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster, rank_processes
from tests.rigs.processes import is_alive
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9]]
LENGTH = 200
OPTIONS = plex.SamplingOptions(n=2, max_tokens=LENGTH, temperature=1.0, seed=7, ignore_eos=True)


def tokens(samples: Sequence[plex.Sample]) -> list[list[int]]:
    ordered = sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
    return [one.tokens for one in ordered]


def pids(cluster: LiveCluster, rollout: plex.Rollout) -> list[int]:
    return rank_processes(cluster, [rollout.deployment_id])


SHAPED = plex.SamplingOptions(
    repetition_penalty=1.3,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    min_p=0.01,
    logit_bias={5: 1.0},
)
MATCHED = plex.SamplingOptions(structured_outputs={"regex": "([a-z] ?){180}"}, ignore_eos=False)


@pytest.mark.parametrize(
    ("instances", "more"), [(1, {}), (2, SHAPED), (2, MATCHED)], ids=["one", "shaped", "matched"]
)
def test_a_generate_outlives_kill_9_of_an_instance(
    cluster: LiveCluster, tiny_model: Path, instances: int, more: plex.SamplingOptions
) -> None:
    options = plex.SamplingOptions(**{**OPTIONS, **more})
    with cluster.connect() as connection, connection.job("kept") as job:
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy(
            "rollout", model=actor, backend="vllm", instances=instances, max_model_len=512
        )
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        version = rollout.sync(actor)
        undisturbed = tokens(rollout.generate(PROMPTS, **options))
        victims = pids(cluster, rollout)[:1]  # asked before: the answer may outlast a generate
        killed: list[int] = []
        samples: list[plex.Sample] = []
        while not killed:  # one whose first tokens come late, on a busy machine, is made again
            samples.clear()
            for delta in rollout.generate.deltas(PROMPTS, **options):
                if not killed and delta.position + len(delta.tokens) < LENGTH / 2:
                    killed = victims
                    os.kill(killed[0], signal.SIGKILL)
                if delta.sample is not None:
                    samples.append(delta.sample)
        assert tokens(samples) == undisturbed
        assert {v for one in samples for v in one.versions} == {version}
        assert {source for one in samples for source in one.sources} == {actor.deployment_id}

        def is_back() -> bool:
            found = [pid for pid in pids(cluster, rollout) if is_alive(pid)]
            return len(found) == instances and killed[0] not in found

        wait_until(is_back, what="the instance is started again")
        again = rollout.generate(PROMPTS, **options)
        assert tokens(again) == undisturbed
        assert again.metrics["instances_lost"] == 0
        assert all(one.is_plain == (not more) for one in again)


def test_a_cancelled_generate_answers_so_and_leaves_its_place_to_the_next(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("cancelled") as job:
        rollout = job.deploy("rollout", model=tiny_model, backend="vllm", max_model_len=512)
        stream = rollout.generate.deltas(PROMPTS * 8, **OPTIONS)
        next(stream)
        stream.cancel()
        with pytest.raises(plex.PlexError) as caught:
            list(stream)
        assert caught.value.code == "cancelled"
        whole = rollout.generate(PROMPTS, **OPTIONS)
        assert all(len(tokens_) == LENGTH for tokens_ in tokens(whole))


def test_a_model_that_vllm_cannot_run_fails_when_it_is_deployed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    model = make_qwen3(tmp_path / "odd", seed=0, head_dim=16)
    with cluster.connect() as connection, connection.job("odd") as job:
        with pytest.raises(plex.PlexError, match="head_dim=16") as caught:
            job.deploy("rollout", model=model, backend="vllm", max_model_len=64)
        assert caught.value.code == "deployment_failed"


def test_a_sync_between_two_sources_serves_the_last_ones_weights(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    with cluster.connect() as connection, connection.job("two") as job:
        actors = [
            job.deploy(
                name,
                role="actor",
                model=str(tiny_model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-2),
            )
            for name in ("a", "b")
        ]
        rollout = job.deploy("rollout", model=actors[0], backend="vllm", max_model_len=64)
        for number, actor in enumerate(actors, start=1):
            actor.forward_backward(fixed_batch(number), loss="ppo")
            actor.step()
        found = []
        for actor in actors:
            version = rollout.sync(actor)
            samples = rollout.generate(PROMPTS, max_tokens=16, temperature=1.0, seed=1)
            assert {v for one in samples for v in one.versions} == {version}
            assert {name for one in samples for name in one.sources} == {actor.deployment_id}
            batch = plex.Batch.from_samples(samples, advantages=[1.0] * len(samples))
            assert batch.logprobs is not None
            assert batch.mask is not None
            gaps = np.abs(actor.forward(batch).logprobs - batch.logprobs)[batch.mask > 0]
            assert gaps.max() < 1e-3
            found.append([one.logprobs.tolist() for one in samples])
        assert found[0] != found[1]

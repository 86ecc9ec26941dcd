"""Adapters in a real job: trained, sampled from, saved, taken back, and rebuilt bit for bit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import plexclient as plex
from plexsvc import lora
from tests.rigs.live_cluster import LiveCluster, rank_processes
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import (
    Program,
    fill_other_devices,
    fixed_batch,
    run_interleaved,
    switches,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 7, 12, 9, 16, 3]]
LORA = plex.LoRA(rank=4, alpha=8.0)


@pytest.fixture
def job(cluster: LiveCluster) -> Iterator[plex.Job]:
    """A job that gives its devices back."""
    with cluster.connect() as connection, connection.job("adapters") as running:
        yield running


def deploy(job: plex.Job, name: str, model: Path, **more: Any) -> plex.Actor:
    given: dict[str, Any] = {"lora": LORA, "micro_batch_tokens": 64, **more}
    optimizer = plex.AdamW(lr=1e-2)
    return job.deploy(
        name, role="actor", model=str(model), backend="fsdp", optimizer=optimizer, **given
    )


def train(actor: plex.Actor, *numbers: int) -> None:
    for number in numbers:
        actor.forward_backward(fixed_batch(number), loss="ppo")
        actor.step()


def gap(actor: plex.Actor, samples: plex.Samples) -> float:
    batch = plex.Batch.from_samples(samples, advantages=np.zeros(len(samples)))
    difference = np.abs(actor.forward(batch).logprobs - batch.logprobs)
    return float(difference[batch.mask > 0].max())


def test_an_engine_samples_from_the_model_with_its_adapters(
    job: plex.Job, tiny_model: Path, tmp_path: Path
) -> None:
    actor = deploy(job, "actor", tiny_model)
    rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
    before = rollout.generate(PROMPTS, n=4, max_tokens=16, seed=1)
    assert gap(actor, before) <= 1e-3, "B is zeros: the adapters add nothing"
    for step in range(3):
        actor.forward_backward(
            plex.Batch.from_samples(before, advantages=np.linspace(-1, 1, len(before))), loss="ppo"
        )
        actor.step(lr=0.05)
        rollout.sync(actor)
        samples = rollout.generate(PROMPTS, n=4, max_tokens=16, seed=step)
        assert gap(actor, samples) <= 1e-3
    assert gap(actor, before) > 1e-2, "three steps changed the policy"
    other = make_qwen3(tmp_path / "other", seed=8)
    stranger = job.deploy("stranger", model=str(other), backend="vllm", max_model_len=128)
    with pytest.raises(plex.PlexError, match="same model") as refused:
        stranger.sync(actor)
    assert refused.value.code == "bad_request"


def test_an_engine_samples_with_an_adapted_unembedding(job: plex.Job, tmp_path: Path) -> None:
    model, exported = make_qwen3(tmp_path / "untied", seed=3, tied=False), tmp_path / "exported"
    whole = plex.LoRA(rank=4, alpha=8.0, unembedding=True)
    actor = deploy(job, "untied", model, lora=whole)
    rollout = job.deploy("from-untied", model=actor, backend="vllm", max_model_len=128)
    before = rollout.generate(PROMPTS, n=4, max_tokens=16, seed=1)
    advantages = np.linspace(-1, 1, len(before))
    for lr in (0.05, 0.05):
        batch = plex.Batch.from_samples(before, advantages=advantages)
        actor.forward_backward(batch, loss="ppo")
        actor.step(lr=lr)
    rollout.sync(actor)
    assert gap(actor, rollout.generate(PROMPTS, n=4, max_tokens=16, seed=2)) <= 1e-3
    assert gap(actor, before) > 1e-2
    actor.export(exported)
    table = json.loads((exported / lora.CONFIG_FILE).read_text())
    assert "lm_head" in table["target_modules"]
    assert load_file(exported / lora.WEIGHTS_FILE)["base_model.model.lm_head.lora_B.weight"].any()


def test_a_checkpoint_has_the_adapters_and_goes_on_bit_for_bit(
    job: plex.Job, tiny_model: Path, tmp_path: Path
) -> None:
    actor = deploy(job, "actor", tiny_model)
    train(actor, 1, 2)
    saved, exported = tmp_path / "saved", tmp_path / "exported"
    actor.save(saved, optimizer=True)
    actor.export(exported)
    assert {path.name for path in exported.iterdir()} == {
        ".complete",
        lora.CONFIG_FILE,
        lora.WEIGHTS_FILE,
    }
    table = json.loads((exported / lora.CONFIG_FILE).read_text())
    assert (table["r"], table["lora_alpha"]) == (4, 8.0)
    assert table["base_model_name_or_path"] == str(tiny_model)
    values = load_file(exported / lora.WEIGHTS_FILE)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    assert values[name].shape[1] == 4
    assert values[name].any()
    again = deploy(job, "again", tiny_model, seed=5)
    again.load(saved, optimizer=True)
    for one in (actor, again):
        train(one, 3)
    assert again.digest() == actor.digest()
    assert {"param", "exp_avg", "exp_avg_sq"} <= set(actor.digest())
    other = deploy(job, "other", tiny_model, lora=plex.LoRA(rank=2, alpha=8.0))
    before = other.digest()
    with pytest.raises(plex.PlexError, match="r is 4, here 2"):
        other.load(saved)
    with pytest.raises(plex.PlexError, match=lora.CONFIG_FILE):
        other.load(tiny_model)
    assert other.digest() == before


def test_a_durable_one_that_is_killed_ends_with_the_bits_it_would_have_had(
    cluster: LiveCluster, job: plex.Job, tiny_model: Path
) -> None:
    ends = []
    for name, durability in (("undisturbed", "none"), ("killed", "step")):
        one = deploy(job, name, tiny_model, durability=durability, parallel=plex.Parallel(dp=2))
        train(one, 1)
        one.forward_backward(fixed_batch(2), loss="ppo")
        if durability == "step":
            os.kill(rank_processes(cluster, [one.deployment_id])[1], signal.SIGKILL)
        train(one, 3)
        ends.append(one.digest())
    assert ends[0] == ends[1]


def test_tenants_share_a_model_and_end_with_the_bits_each_has_alone(
    cluster: LiveCluster, wide_model: Path
) -> None:
    def deploy_in(job: plex.Job, seed: int) -> plex.Actor:
        wide = plex.LoRA(rank=16)
        return deploy(job, "actor", wide_model, lora=wide, dtype="bfloat16", seed=seed)

    with cluster.connect() as connection, ExitStack() as stack:
        alone = []
        for seed in range(3):
            with connection.job(f"lonely-{seed}") as job:
                actor = deploy_in(job, seed)
                run_interleaved([Program(actor, seed)])
                alone.append(actor.digest())
        jobs = [stack.enter_context(connection.job(f"tenant-{seed}")) for seed in range(3)]
        actors = [deploy_in(jobs[0], 0)]
        fill_other_devices(jobs[0], 2, model=wide_model)
        actors += [deploy_in(jobs[seed], seed) for seed in (1, 2)]
        before = switches(cluster.status())
        run_interleaved([Program(actor, seed) for seed, actor in enumerate(actors)])
        assert switches(cluster.status()) - before >= 12, "the tenants did not take turns"
        assert [actor.digest() for actor in actors] == alone
        os.kill(rank_processes(cluster, [actors[0].deployment_id])[0], signal.SIGKILL)
        with pytest.raises(plex.PlexError) as lost:
            run_interleaved([Program(actors[0], 0)])
        assert lost.value.code == "worker_died"
        assert [actor.digest() for actor in actors[1:]] == alone[1:]
        run_interleaved([Program(actor, 7) for actor in actors[1:]])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lora": plex.LoRA(rank=4096)}, "smallest side"),
        ({"lora": plex.LoRA(targets=["q_proj", "nope"])}, "no linear layers nope"),
        ({"backend": "megatron"}, "backend 'fsdp'"),
        ({"optimizer": None}, "with an optimizer"),
        ({"role": "critic"}, "actor"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_adapters_that_cannot_be_are_refused_before_anything_is_placed(
    cluster: LiveCluster, job: plex.Job, tiny_model: Path, more: dict[str, Any], said: str
) -> None:
    before = {one.deployment_id for one in cluster.status().deployments}
    given: dict[str, Any] = {"role": "actor", "backend": "fsdp", "lora": LORA}
    given |= {"optimizer": plex.AdamW(), **more}
    with pytest.raises(plex.PlexError, match=said) as refused:
        job.deploy("refused", model=str(tiny_model), **given)
    assert refused.value.code == "bad_request"
    assert {one.deployment_id for one in cluster.status().deployments} == before

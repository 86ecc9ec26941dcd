"""The loop of the README on real engines: generate, score, train, sync, and logprobs that agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 7, 12, 9, 16, 3]]

Loop: TypeAlias = tuple[plex.Job, plex.Actor, plex.Rollout]


@pytest.fixture(scope="module")
def loop(cluster: LiveCluster, tiny_model: Path) -> Iterator[Loop]:
    with cluster.connect() as connection, connection.job("loop") as job:
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
        yield job, actor, rollout


def gap(actor: plex.Actor, samples: plex.Samples) -> tuple[float, float]:
    batch = plex.Batch.from_samples(samples, advantages=np.zeros(len(samples)))
    trained = actor.forward(batch).logprobs
    difference = np.abs(trained - batch.logprobs)[batch.mask > 0]
    return float(difference.mean()), float(difference.max())


def test_sampled_logprobs_agree_with_the_trainer_before_and_after_training(loop: Loop) -> None:
    _, actor, rollout = loop
    versions = []
    for step, temperature in enumerate((1.0, 0.7, 1.3)):
        version = rollout.sync(actor)
        samples = rollout.generate(PROMPTS, n=4, max_tokens=16, temperature=temperature, seed=step)
        assert len(samples) == 8
        assert {v for sample in samples for v in sample.versions} == {version}
        mean, largest = gap(actor, samples)
        assert mean <= 1e-4
        assert largest <= 1e-3
        rewards = np.array([float(len(set(sample.tokens))) for sample in samples])
        advantages = plex.grpo_advantages(rewards, group=4)
        batch = plex.Batch.from_samples(samples, advantages=advantages)
        assert batch.temperature == temperature
        loss = actor.forward_backward(batch, loss="ppo", clip=0.2)
        assert loss["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
        assert loss["logprob_gap_mean"] == pytest.approx(mean, abs=1e-6)
        assert loss["logprob_gap_max"] == pytest.approx(largest, abs=1e-6)
        actor.step()
        versions.append(version)
    assert versions == sorted(set(versions))


def test_a_bound_on_the_gap_refuses_samples_of_other_weights_and_keeps_the_window(
    loop: Loop, tiny_model: Path
) -> None:
    job, actor, rollout = loop
    taught = plex.Batch.from_sequences([[*PROMPTS[0], *PROMPTS[1]]])
    actor.forward_backward(taught, loss="cross_entropy")
    actor.step(lr=0.05)
    rollout.sync(actor)
    samples = rollout.generate(PROMPTS, n=2, max_tokens=8, seed=9)
    batch = plex.Batch.from_samples(samples, advantages=np.ones(4))
    bounded = job.deploy(
        "bounded",
        role="actor",
        model=str(tiny_model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        max_logprob_gap=1e-3,
    )
    with pytest.raises(plex.PlexError, match="max_logprob_gap") as caught:
        bounded.forward_backward(batch, loss="ppo")
    assert caught.value.code == "logprob_mismatch"
    rollout.sync(bounded)
    samples = rollout.generate(PROMPTS, n=2, max_tokens=8, seed=9)
    batch = plex.Batch.from_samples(samples, advantages=np.ones(4))
    assert bounded.forward_backward(batch, loss="ppo")["logprob_gap_max"] <= 1e-3
    assert bounded.step()["steps"] == 1.0
    rollout.sync(actor)


def test_a_sync_submitted_before_a_step_carries_the_weights_before_it(loop: Loop) -> None:
    _, actor, rollout = loop
    rollout.sync(actor)
    batch = plex.Batch.from_samples(
        rollout.generate(PROMPTS, n=4, max_tokens=8, seed=1), advantages=np.ones(8)
    )
    before = actor.forward(batch).logprobs
    syncing = rollout.sync.submit(actor)
    training = actor.forward_backward.submit(batch, loss="importance_sampling")
    stepping = actor.step.submit(lr=0.05)
    sampling = rollout.generate.submit(PROMPTS, n=4, max_tokens=8, seed=1)
    samples = sampling.result(120)
    for call in (syncing, training, stepping):
        call.result(120)
    again = plex.Batch.from_samples(samples, advantages=np.ones(8))
    assert np.abs(again.logprobs - batch.logprobs).max() <= 1e-5
    assert np.abs(actor.forward(batch).logprobs - before).max() > 1e-3


def test_the_same_seeds_give_the_same_samples(loop: Loop) -> None:
    _, actor, rollout = loop
    rollout.sync(actor)
    first = rollout.generate(PROMPTS, n=3, max_tokens=12, seed=7)
    second = rollout.generate(PROMPTS, n=3, max_tokens=12, seed=7)
    other = rollout.generate(PROMPTS, n=3, max_tokens=12, seed=8)
    assert [s.tokens for s in first] == [s.tokens for s in second]
    assert [s.tokens for s in first] != [s.tokens for s in other]


def test_text_in_gives_text_out(loop: Loop) -> None:
    _, _, rollout = loop
    samples = rollout.generate(["12+3="], n=2, max_tokens=5, seed=0)
    assert all(isinstance(sample.text, str) for sample in samples)
    assert [s.prompt_tokens for s in samples] == [[3, 4, 12, 5, 16]] * 2


def test_streamed_samples_equal_the_whole_answer(loop: Loop) -> None:
    _, _, rollout = loop
    whole = rollout.generate(PROMPTS, n=2, max_tokens=10, seed=3)
    streamed = {
        (s.prompt_index, s.sample_index): s
        for s in rollout.generate.stream(PROMPTS, n=2, max_tokens=10, seed=3)
    }
    assert {(s.prompt_index, s.sample_index): list(s.tokens) for s in whole} == {
        key: list(sample.tokens) for key, sample in streamed.items()
    }


def test_a_model_judges_what_was_written(loop: Loop) -> None:
    job, _, rollout = loop
    texts, sampling = ["12+3", "4+5", "6+7"], plex.SamplingOptions(max_tokens=24, seed=5)
    scores = job.score(
        "judge",
        texts,
        references=["15", "9", "13"],
        deployment=rollout,
        template="{text}={reference}",
        pattern=r"(\d)",
        scale=9,
        sampling=sampling,
    )
    said = rollout.generate(["12+3=15", "4+5=9", "6+7=13"], **sampling)
    assert [score.output for score in scores] == [sample.text for sample in said]
    digits = [re.findall(r"\d", sample.text or "") for sample in said]
    assert any(digits), "some of 24 characters are digits"
    for score, found in zip(scores, digits, strict=True):
        assert (score.verdict == "scored") == bool(found)
        assert not found or score.value == int(found[-1]) / 9

"""Adapters of two tenants on one engine: each gets what it gets alone, whatever the other does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import (
    MIB,
    ROLLOUT,
    SHARES_ALL,
    TRAIN,
    LiveCluster,
    Service,
    processes,
)
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOKENS = 'tokens = { mine = "default", theirs = "ops" }\nrouter.operators = ["default"]\n'
PROMPTS = [[3, 4, 12, 5, 16], [7, 7, 12, 9, 16, 3]]
LORA = plex.LoRA(rank=4, alpha=8.0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    nodes = {"only": [TRAIN, TRAIN, ROLLOUT, ROLLOUT, ROLLOUT]}
    scheduler = f"{SHARES_ALL}adapter_bytes = {64 * MIB}\n"
    with Service(tmp_path, nodes=nodes, extra=TOKENS, scheduler=scheduler) as running:
        yield running


def deploy(job: plex.Job, model: Path, *, seed: int) -> tuple[plex.Actor, plex.Rollout]:
    """Return an actor with adapters, after two steps, and a rollout that has them."""
    actor = job.deploy(
        "actor",
        role="actor",
        model=str(model),
        backend="fsdp",
        lora=LORA,
        optimizer=plex.AdamW(lr=5e-2),
        micro_batch_tokens=64,
        seed=seed,
    )
    rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
    push(actor, rollout, seed, seed + 10)
    return actor, rollout


def push(actor: plex.Actor, rollout: plex.Rollout, *batches: int) -> None:
    for number in batches:
        actor.forward_backward(fixed_batch(number), loss="ppo")
        actor.step()
    rollout.sync(actor)


def ask(rollout: plex.Rollout) -> Any:
    return rollout.generate.submit(PROMPTS, n=4, max_tokens=96, seed=5, ignore_eos=True)


def the_process(cluster: LiveCluster, *rollouts: plex.Rollout) -> int:
    """Return the pid of the engine that rollouts share: each is shown to its tenant alone."""
    views = (cluster, replace(cluster, token="theirs"))
    wpgs = {d.deployment_id: d.wpg_id for view in views for d in view.status().deployments}
    pids = {proc.wpg_id: proc.pid for proc in processes(cluster)}
    (pid,) = {pids[wpgs[one.deployment_id]] for one in rollouts}
    return pid


def same(found: plex.Samples, expected: plex.Samples) -> bool:
    """Whether tokens are the same; logprobs of tokens that are must be so, too."""
    pairs = list(zip(found, expected, strict=True))
    is_same = all(list(one.tokens) == list(other.tokens) for one, other in pairs)
    if is_same:
        for one, other in pairs:
            np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-5)
    return is_same


def gap(actor: plex.Actor, samples: plex.Samples) -> float:
    batch = plex.Batch.from_samples(samples, advantages=np.zeros(len(samples)))
    difference = np.abs(actor.forward(batch).logprobs - batch.logprobs)
    return float(difference[batch.mask > 0].max())


def test_tenants_share_an_engine_and_each_gets_what_it_gets_alone(
    service: Service, tiny_model: Path
) -> None:
    cluster = service.live
    with ExitStack() as stack:
        mine = stack.enter_context(cluster.connect())
        theirs = stack.enter_context(plex.connect(cluster.address, token="theirs"))
        rival = stack.enter_context(theirs.job("rival"))
        base_job = stack.enter_context(mine.job("base"))
        with mine.job("acme") as acme:
            actor, rollout = deploy(acme, tiny_model, seed=1)
            alone = ask(rollout).result()
            other_actor, other = deploy(rival, tiny_model, seed=2)
            beside = base_job.deploy(
                "rollout", model=str(tiny_model), backend="vllm", max_model_len=128, lora=LORA
            )
            rollouts = [rollout, other, beside]
            engine = the_process(cluster, *rollouts)
            engines = {one.deployment_id: one.engine for one in cluster.instances().values()}
            assert len({engines[one.deployment_id] for one in rollouts} - {""}) == 1

            others, base = ask(other).result(), ask(beside).result()
            for first, second in ((alone, others), (others, base), (base, alone)):
                assert not same(first, second)
            together = [ask(one) for one in rollouts]
            for future, expected in zip(together, (alone, others, base), strict=True):
                assert same(future.result(), expected)
            assert gap(actor, alone) <= 1e-3
            assert gap(other_actor, others) <= 1e-3

            asked = [ask(one) for one in rollouts]
            os.kill(engine, signal.SIGKILL)
            for future, expected in zip(asked, (alone, others, base), strict=True):
                assert same(future.result(), expected), "each has its adapters again"
            survivor = the_process(cluster, *rollouts)
            assert survivor != engine

            push(actor, rollout, 3)
            assert not same(ask(rollout).result(), alone)
            assert same(ask(other).result(), others)
            service.kill()
            service.start()
            assert same(ask(beside).result(), base)
            assert the_process(service.live, *rollouts) == survivor, "adopted"
        assert same(ask(other).result(), others)
        assert the_process(service.live, other, beside) == survivor

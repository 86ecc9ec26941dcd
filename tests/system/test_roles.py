"""What each role does on both backends: critic, reference, checkpoint, export, balanced data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import plexclient as plex
from plexclient.wire.v1 import operations_pb2
from tests.rigs import hf_reference
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.raw_client import RawClient
from tests.rigs.workloads import VOCAB, Program, fill_other_devices, fixed_batch, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow]

ADAM = plex.AdamW(lr=1e-2)
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Cast:
    """One job's deployments of one model on one backend; two references on two nodes."""

    job: plex.Job
    actor: plex.Actor
    critic: plex.Critic
    references: list[plex.Reference]
    model: Path
    backend: str


@pytest.fixture(scope="module", params=["megatron", "fsdp"])
def cast(request: pytest.FixtureRequest, cluster: LiveCluster, tiny_model: Path) -> Iterator[Cast]:
    model, backend = str(tiny_model), str(request.param)
    with cluster.connect() as connection, connection.job(f"roles-{backend}") as job:
        actor = job.deploy("actor", model=model, backend=backend, optimizer=ADAM)
        references = [
            job.deploy(f"reference-{index}", role="reference", model=model, backend=backend)
            for index in range(2)
        ]
        critic = job.deploy("critic", model=model, backend=backend, optimizer=ADAM)
        yield Cast(job, actor, critic, references, tiny_model, backend)


def train(actor: plex.Actor, *, first: int, steps: int = 2) -> list[dict[str, float]]:
    metrics = []
    for seed in range(first, first + steps):
        metrics.append(actor.forward_backward(fixed_batch(seed), loss="ppo").metrics)
        metrics.append(actor.step().metrics)
    return metrics


def value_batch(seed: int) -> plex.Batch:
    arrays: dict[str, Any] = dict(fixed_batch(seed).arrays())
    returns = np.random.default_rng(seed).normal(0.5, 1, arrays["tokens"].size)
    return plex.Batch(**{**arrays, "returns": returns.astype(np.float32)})


def test_a_critic_learns_its_returns(cast: Cast) -> None:
    batch = value_batch(3)
    losses = []
    for _ in range(12):
        losses.append(cast.critic.forward_backward(batch)["loss"])
        cast.critic.step(lr=3e-3)
    assert losses[-1] < 0.5 * losses[0]
    values = cast.critic.forward(batch).values
    assert 0.5 * np.square(values - batch.returns).sum() < losses[0]


def test_a_value_loss_differentiated_by_the_client_equals_the_built_in(cast: Cast) -> None:
    batch = value_batch(4)
    cast.critic.forward_backward(batch, loss="value_mse")
    built_in = cast.critic.step(lr=0.0)["grad_norm"]
    values = cast.critic.forward(batch).values
    cast.critic.backward(batch, values - batch.returns)
    assert cast.critic.step(lr=0.0)["grad_norm"] == pytest.approx(built_in, rel=TOLERANCE)


def test_a_critic_is_saved_with_its_head(cast: Cast, tmp_path: Path) -> None:
    batch = value_batch(5)
    before, digest = cast.critic.forward(batch).values, cast.critic.digest()
    cast.critic.save(tmp_path / "critic")
    cast.critic.forward_backward(batch)
    cast.critic.step()
    assert np.abs(cast.critic.forward(batch).values - before).max() > 1e-4
    cast.critic.load(tmp_path / "critic", optimizer=True)
    np.testing.assert_array_equal(cast.critic.forward(batch).values, before)
    assert cast.critic.digest() == digest


def test_references_on_both_nodes_take_the_actors_weights_and_keep_no_optimizer_state(
    cast: Cast,
) -> None:
    assert {block.node_id for r in cast.references for block in r.info.blocks} == {
        "node-a",
        "node-b",
    }
    batch = fixed_batch(6)
    train(cast.actor, first=20)
    wanted = cast.actor.forward(batch).logprobs
    for reference in cast.references:
        assert 0 < reference.info.state_bytes < cast.actor.info.state_bytes / 3
        assert set(reference.digest()) == {"param"}
        assert np.abs(reference.forward(batch).logprobs - wanted).max() > 1e-3
        reference.sync(cast.actor)
        np.testing.assert_array_equal(reference.forward(batch).logprobs, wanted)
        assert reference.digest()["param"] == cast.actor.digest()["param"]


def test_training_goes_on_bit_for_bit_from_a_checkpoint(cast: Cast, tmp_path: Path) -> None:
    train(cast.actor, first=30)
    cast.actor.save(tmp_path / "saved")
    at_save = cast.actor.digest()
    metrics = train(cast.actor, first=40)
    resumed = cast.job.deploy(
        "resumed", role="actor", model=str(cast.model), backend=cast.backend, optimizer=ADAM
    )
    resumed.load(tmp_path / "saved", optimizer=True)
    assert resumed.digest() == at_save
    assert train(resumed, first=40) == metrics
    assert resumed.digest() == cast.actor.digest()


def test_an_export_is_a_model_that_transformers_loads(cast: Cast, tmp_path: Path) -> None:
    train(cast.actor, first=50, steps=1)
    cast.actor.export(tmp_path / "exported")
    batch = fixed_batch(7)
    found = cast.actor.forward(batch, temperature=0.8).logprobs
    model = hf_reference.Reference.load(tmp_path / "exported")
    wanted = model.logprobs(batch.arrays(), temperature=0.8).detach().numpy()
    assert np.abs(found - wanted).max() <= TOLERANCE


def deploy_pair(job: plex.Job, model: Path, *, names: tuple[str, ...]) -> list[plex.Actor]:
    found = []
    for name in names:
        found.append(
            job.deploy(name, role="actor", model=str(model), backend="megatron", optimizer=ADAM)
        )
        if len(names) > 1 and len(found) == 1:
            fill_other_devices(job, 2, model=model)
    return found


def test_two_training_deployments_of_a_job_take_turns_on_one_device(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    alone = []
    with cluster.connect() as connection:
        for seed, name in enumerate(("first", "second")):
            with connection.job(f"alone-{name}") as job:
                (only,) = deploy_pair(job, tiny_model, names=(name,))
                run_interleaved([Program(only, seed, steps=2)])
                alone.append(only.digest())
        with connection.job("both") as job:
            both = deploy_pair(job, tiny_model, names=("first", "second"))
            assert both[0].info.blocks == both[1].info.blocks
            run_interleaved([Program(one, seed, steps=2) for seed, one in enumerate(both)])
            loads = [s for s in cluster.timeline() if s.kind == "load" and s.job_id == job.job_id]
            assert [one.digest() for one in both] == alone
    assert alone[0] != alone[1]
    assert len(loads) >= 8, "the deployments did not take turns"


def lognormal_batch(seed: int) -> plex.Batch:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(4.0, 1.0, 64), 4, 500).astype(np.int64)
    total = int(lengths.sum())
    return plex.Batch(
        tokens=rng.integers(2, VOCAB, total).astype(np.int32),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]),
        target_tokens=rng.integers(2, VOCAB, total).astype(np.int32),
        weights=np.full(total, 1 / total, np.float32),
    )


def grad_norm(raw: RawClient, batch: plex.Batch) -> float:
    body = operations_pb2.ForwardBackward(loss="cross_entropy")
    raw.submit(*raw.operation(batch.arrays(), forward_backward=body))
    step = operations_pb2.Step(lr=1e-3)
    return raw.submit(*raw.operation(step=step)).metrics["grad_norm"]


@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
def test_two_ranks_share_lognormal_lengths_evenly_and_train_like_one(
    cluster: LiveCluster, tiny_model: Path, backend: str
) -> None:
    batch = lognormal_batch(1)
    lengths = np.array([b - a for a, b in pairwise(batch.cu_seqlens.tolist())])
    norms, shares = [], []
    with (
        cluster.connect() as connection,
        connection.job(f"balance-{backend}") as job,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        for dp in (1, 2):
            actor = job.deploy(
                f"dp{dp}",
                role="actor",
                model=str(tiny_model),
                backend=backend,
                optimizer=ADAM,
                parallel=plex.Parallel(dp=dp),
            )
            raw = RawClient(channel, cluster.token, job.job_id, actor.deployment_id)
            norms.append(grad_norm(raw, batch))
            forward = raw.operation(batch.arrays(), forward=operations_pb2.Forward())
            shares.append([list(shard.sequences) for shard in raw.submit(*forward).shards])
    assert [len(ranks) for ranks in shares] == [1, 2]
    assert sorted(shares[1][0] + shares[1][1]) == list(range(lengths.size))
    tokens = [int(lengths[share].sum()) for share in shares[1]]
    assert max(tokens) / np.mean(tokens) <= 1.05
    assert norms[1] == pytest.approx(norms[0], rel=TOLERANCE)

"""Promise 1: a multiplexed job ends with the parameters and moments it would have had alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import (
    Program,
    fill_other_devices,
    fixed_batch,
    run_interleaved,
    switches,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE = plex.Parallel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a job's model is computed."""

    backend: str = "megatron"
    parallel: plex.Parallel
    dtype: str = "float32"
    lora: plex.LoRA | None = None
    on: str = "device"


LAYOUTS = {
    "megatron-one-rank": Layout(parallel=ONE),
    "megatron-tp2": Layout(parallel=plex.Parallel(tp=2)),
    "megatron-pp2": Layout(parallel=plex.Parallel(pp=2)),
    "megatron-dp2": Layout(parallel=plex.Parallel(dp=2)),
    "megatron-zero": Layout(
        parallel=plex.Parallel(dp=2, distributed_optimizer=True), dtype="bfloat16"
    ),
    "megatron-ep2": Layout(parallel=plex.Parallel(dp=2, ep=2)),
    "megatron-cp2": Layout(parallel=plex.Parallel(cp=2)),
    "fsdp-dp2": Layout(backend="fsdp", parallel=plex.Parallel(dp=2)),
    "fsdp-cp2": Layout(backend="fsdp", parallel=plex.Parallel(cp=2)),
    "fsdp-dp2-host": Layout(backend="fsdp", parallel=plex.Parallel(dp=2), on="host"),
    "megatron-host": Layout(
        parallel=plex.Parallel(dp=2, distributed_optimizer=True), dtype="bfloat16", on="host"
    ),
    "fsdp-lora": Layout(backend="fsdp", parallel=ONE, dtype="bfloat16", lora=plex.LoRA(rank=16)),
}


def deploy(job: plex.Job, model: Path, layout: Layout, *, seed: int) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend=layout.backend,
        parallel=layout.parallel,
        dtype=layout.dtype,
        optimizer=plex.AdamW(lr=1e-2, on=layout.on),
        lora=layout.lora,
        seed=seed,
        micro_batch_tokens=64,
    )


def digest_alone(
    cluster: plex.Cluster, model: Path, layout: Layout, *, seed: int
) -> dict[str, str]:
    with cluster.job(f"alone-{seed}") as job:
        actor = deploy(job, model, layout, seed=seed)
        run_interleaved([Program(actor, seed)])
        return actor.digest()


def digests_shared(
    live: LiveCluster,
    cluster: plex.Cluster,
    models: list[Path],
    layouts: list[Layout],
) -> list[dict[str, str]]:
    with cluster.job("shared-0") as first, cluster.job("shared-1") as second:
        actor_a = deploy(first, models[0], layouts[0], seed=0)
        if all(layout.parallel == ONE for layout in layouts):
            fill_other_devices(first, 2, model=models[0])
        actor_b = deploy(second, models[1], layouts[1], seed=1)
        before = switches(live.status())
        run_interleaved([Program(actor_a, 0), Program(actor_b, 1)])
        assert switches(live.status()) - before >= 12, "the jobs did not take turns"
        if layouts[0] is layouts[1] is LAYOUTS["megatron-dp2"]:
            parked = sum(one.host_bytes for node in live.nodes() for one in node.residents)
            replicas = sum(node.replica_bytes for node in live.nodes())
            assert replicas == parked * 3 // 8, "all but gradients, of every second rank"
        return [actor_a.digest(), actor_b.digest()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_jobs_switched_between_backward_and_step_equal_each_alone(
    cluster: LiveCluster,
    tmp_path: Path,
    tiny_model: Path,
    wide_model: Path,
    moe_model: Path,
    name: str,
) -> None:
    layout = LAYOUTS[name]
    wide = dict.fromkeys(
        ("megatron-tp2", "megatron-pp2", "megatron-host", "fsdp-dp2", "fsdp-cp2", "fsdp-lora"),
        wide_model,
    )
    model = {**wide, "megatron-ep2": moe_model}.get(name, tiny_model)
    if name == "fsdp-dp2-host":  # half the state is on the host
        model = make_qwen3(tmp_path / "deep", seed=2, layers=8)
    with cluster.connect() as connection:
        alone = [digest_alone(connection, model, layout, seed=seed) for seed in (0, 1)]
        shared = digests_shared(cluster, connection, [model, model], [layout, layout])
    assert alone[0] != alone[1], "the programs must differ for the comparison to mean anything"
    assert {"param", "exp_avg", "exp_avg_sq"} <= set(alone[0])
    assert shared == alone


def test_a_job_with_a_distributed_optimizer_has_the_digests_of_one_without(
    cluster: LiveCluster, tiny_model: Path
) -> None:
    shared = LAYOUTS["megatron-zero"]
    layouts = (shared, replace(shared, parallel=plex.Parallel(dp=2)))
    with cluster.connect() as connection:
        digests = [digest_alone(connection, tiny_model, each, seed=0) for each in layouts]
    assert "master" in digests[0]
    assert digests[0] == digests[1]


def test_jobs_in_different_layouts_and_precisions_equal_each_alone(
    cluster: LiveCluster, tiny_model: Path, wide_model: Path
) -> None:
    half = replace(LAYOUTS["megatron-tp2"], dtype="bfloat16")
    layouts = [half, LAYOUTS["megatron-dp2"]]
    models = [wide_model, tiny_model]
    with cluster.connect() as connection:
        alone = [
            digest_alone(connection, model, layout, seed=seed)
            for seed, (model, layout) in enumerate(zip(models, layouts, strict=True))
        ]
        assert ["master" in digests for digests in alone] == [True, False]
        assert digests_shared(cluster, connection, models, layouts) == alone


def test_turns_that_only_look_copy_nothing_out(cluster: LiveCluster, tiny_model: Path) -> None:
    with cluster.connect() as connection, connection.job("a") as a, connection.job("b") as b:
        first = deploy(a, tiny_model, LAYOUTS["megatron-one-rank"], seed=0)
        fill_other_devices(a, 2, model=tiny_model)
        second = deploy(b, tiny_model, LAYOUTS["megatron-one-rank"], seed=1)
        run_interleaved([Program(first, 0), Program(second, 1)])
        batch = fixed_batch(0)
        looked = [first.forward(batch).logprobs, second.forward(batch).logprobs]
        since = cluster.timeline()[-1].index
        for before, actor in zip(2 * looked, 2 * [first, second], strict=True):
            np.testing.assert_array_equal(actor.forward(batch).logprobs, before)
        spans = [span for span in cluster.timeline() if span.index > since]
        copied = [span.nbytes for span in spans if span.kind == "offload"]
        assert len(copied) >= 3, "the jobs did not take turns"
        assert not any(copied)
        assert all(span.nbytes for span in spans if span.kind == "load")

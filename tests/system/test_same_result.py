"""Promise 1: a multiplexed job ends with the parameters and moments it would have had alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.workloads import Program, fill_other_devices, run_interleaved, switches

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

ONE = plex.Parallel()
LAYOUTS = {
    "megatron-one-rank": ("megatron", ONE),
    "megatron-tp2": ("megatron", plex.Parallel(tp=2)),
    "megatron-pp2": ("megatron", plex.Parallel(pp=2)),
    "megatron-dp2": ("megatron", plex.Parallel(dp=2)),
    "fsdp-dp2": ("fsdp", plex.Parallel(dp=2)),
}


def deploy(
    job: plex.Job, model: Path, layout: tuple[str, plex.Parallel], *, seed: int
) -> plex.Actor:
    backend, parallel = layout
    return job.deploy(
        "actor",
        model=str(model),
        backend=backend,
        parallel=parallel,
        optimizer=plex.AdamW(lr=1e-2),
        seed=seed,
        micro_batch_tokens=64,
    )


def digest_alone(
    cluster: plex.Cluster, model: Path, layout: tuple[str, plex.Parallel], *, seed: int
) -> dict[str, str]:
    with cluster.job(f"alone-{seed}") as job:
        actor = deploy(job, model, layout, seed=seed)
        run_interleaved([Program(actor, seed)])
        return actor.digest()


def digests_shared(
    live: LiveCluster,
    cluster: plex.Cluster,
    models: list[Path],
    layouts: list[tuple[str, plex.Parallel]],
) -> list[dict[str, str]]:
    with cluster.job("shared-0") as first, cluster.job("shared-1") as second:
        actor_a = deploy(first, models[0], layouts[0], seed=0)
        if all(parallel == ONE for _, parallel in layouts):
            fill_other_devices(first, 2, model=models[0])
        actor_b = deploy(second, models[1], layouts[1], seed=1)
        before = switches(live.status())
        run_interleaved([Program(actor_a, 0), Program(actor_b, 1)])
        assert switches(live.status()) - before >= 12, "the jobs did not take turns"
        return [actor_a.digest(), actor_b.digest()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_jobs_switched_between_backward_and_step_equal_each_alone(
    cluster: LiveCluster, tiny_model: Path, wide_model: Path, name: str
) -> None:
    layout = LAYOUTS[name]
    model = wide_model if name in {"megatron-tp2", "megatron-pp2", "fsdp-dp2"} else tiny_model
    with cluster.connect() as connection:
        alone = [digest_alone(connection, model, layout, seed=seed) for seed in (0, 1)]
        shared = digests_shared(cluster, connection, [model, model], [layout, layout])
    assert alone[0] != alone[1], "the programs must differ for the comparison to mean anything"
    assert {"param", "exp_avg", "exp_avg_sq"} <= set(alone[0])
    assert shared == alone


def test_jobs_in_different_layouts_equal_each_alone(
    cluster: LiveCluster, tiny_model: Path, wide_model: Path
) -> None:
    layouts = [LAYOUTS["megatron-tp2"], LAYOUTS["megatron-dp2"]]
    models = [wide_model, tiny_model]
    with cluster.connect() as connection:
        alone = [
            digest_alone(connection, model, layout, seed=seed)
            for seed, (model, layout) in enumerate(zip(models, layouts, strict=True))
        ]
        assert digests_shared(cluster, connection, models, layouts) == alone

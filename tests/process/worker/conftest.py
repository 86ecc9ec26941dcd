"""One rank host for all tests of ranks, the models they share, and groups by layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.hf_reference import Reference
from tests.rigs.rank_host import Group, RankHost, StartGroup, start_rank_host
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.worker_batches import errors, operation


@pytest.fixture(scope="session")
def rank_host() -> Iterator[RankHost]:
    with start_rank_host() as host:
        yield host


@pytest.fixture(scope="session")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Qwen3 of 4 layers whose vocabulary (51) no layout divides."""
    return make_qwen3(tmp_path_factory.mktemp("odd") / "model", seed=3, vocab=51, layers=4)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(
        tmp_path_factory.mktemp("untied") / "model", seed=4, vocab=51, layers=4, tied=False
    )


@pytest.fixture(scope="session")
def reference(odd_model: Path) -> Reference:
    return Reference.load(odd_model)


@pytest.fixture
def start_group(rank_host: RankHost, tmp_path: Path, odd_model: Path) -> Iterator[StartGroup]:
    """Return a function that forks a group and initialises it; every group ends with the test."""
    started: list[Group] = []

    def start(*, initialize: bool = True, **changes: Any) -> Group:
        parallel = changes.get("parallel", {})
        world = math.prod(parallel.get(degree, 1) for degree in ("tp", "pp", "dp", "cp"))
        table = {
            "wpg_id": "wpg",
            "world_size": world,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "tenant": "tenant",
            "job_id": "job",
            "deployment_id": "job/actor",
            "role": "actor",
            "backend": "megatron",
            "model": str(odd_model),
            "optimizer": {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1},
            "seed": 7,
            "node_id": "node",
            "rendezvous": f"file://{tmp_path}/rendezvous-{len(started)}",
            "collective_timeout_s": 60,
            **changes,
        }
        group = rank_host.start([{**table, "rank": rank} for rank in range(world)])
        started.append(group)
        if initialize:
            assert errors(group.execute(operation(0, "initialize"))) == [""] * world
        return group

    yield start
    for group in started:
        group.stop()

"""Clusters whose rollout processes are fake engines of long answers, and a model for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plexsvc.cluster import embedded
from plexsvc.cluster.config import NodeConfig
from plexsvc.node.config import AgentConfig
from plexsvc.scheduler.config import SchedulerConfig
from tests.fakes import fake_rollout
from tests.rigs.inner_cluster import InnerCluster, start_inner
from tests.rigs.tiny_models import make_qwen3


@contextmanager
def start_with_fake_engines(
    directory: Path, *, nodes: tuple[NodeConfig, ...], scheduler: SchedulerConfig | None = None
) -> Iterator[InnerCluster]:
    """Run a cluster whose agents fork fake engines in place of vLLM."""
    real = AgentConfig.__dataclass_fields__["images"].default
    images = [fake_rollout.IMAGE if one.name == "rollout" else one for one in real]

    def agent(**given: object) -> AgentConfig:
        return AgentConfig(**given, images=tuple(images))  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "AgentConfig", agent)
        with start_inner(directory, nodes=nodes, scheduler=scheduler) as inner:
            yield inner


def make_long_model(directory: Path) -> Path:
    """Return a tiny model that takes sequences as long as the fake engines'."""
    made = make_qwen3(directory / "long", seed=0)
    config = json.loads((made / "config.json").read_text())
    config["max_position_embeddings"] = fake_rollout.MAX_LEN
    (made / "config.json").write_text(json.dumps(config))
    return made

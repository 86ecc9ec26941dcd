"""The unmodified Tinker SDK against a live cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import tinker_sdk
from tests.rigs.live_cluster import ROLLOUT, TRAIN, LiveCluster, start_cluster
from tests.rigs.tiny_models import make_qwen3

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]

MINE, THEIRS = "tml-mine", "tml-theirs"
OPEN = """
tokens = { tml-mine = "default", theirs = "ops" }
router.http_listen = "127.0.0.1:0"
router.tinker.whole.model = "MODEL"
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster, and a model that is trained on it."""

    live: LiveCluster
    model: str

    def run(self, program: str, *, key: str = MINE, **given: Any) -> Any:
        """Return what a program of `tinker_programs` returns."""
        return tinker_sdk.run(self.live, program, key=key, **({"model": self.model} | given))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model: Path = make_qwen3(tmp_path_factory.mktemp("model") / "tiny", seed=1)
    nodes = {"only": [TRAIN, ROLLOUT]}
    extra = OPEN.replace("MODEL", str(model))
    with start_cluster(tmp_path_factory.mktemp("tinker"), nodes=nodes, extra=extra) as live:
        yield Served(live, str(model))


def test_a_training_client_learns_and_is_told_losses_as_sums(served: Served) -> None:
    told = served.run("supervised", steps=4)
    assert told["losses"] == sorted(told["losses"], reverse=True)
    assert told["loss"] < told["losses"][-1]
    flat = [one for datum in told["logprobs"] for one in datum]
    assert [len(one) for one in told["logprobs"]] == [4, 3, 2]
    assert math.isclose(-sum(flat), told["loss"], rel_tol=1e-5)
    assert [-one for one in flat] == [one for datum in told["elementwise"] for one in datum]


def test_two_tenants_that_share_a_device_get_what_they_get_alone(served: Served) -> None:
    alone = served.run("supervised", steps=4)
    started = [
        tinker_sdk.start(served.live, "supervised", key=key, model=served.model, steps=4)
        for key in (MINE, THEIRS)
    ]
    together = [tinker_sdk.answer(one) for one in started]
    assert together == [alone, alone]


def test_what_is_not_offered_is_refused_by_name_and_training_goes_on(served: Served) -> None:
    told = served.run("refused")
    found = {name: one["text"] for name, one in told["refusals"].items()}
    assert "adapters are not offered yet" in found["adapter"]
    assert "nowhere" in found["no model"]
    assert "gspo" in found["loss"]
    assert "loss_fn_config.clip" in found["config"]
    assert "weights has 1 numbers for 2 tokens" in found["length"]
    assert "logprobs is missing" in found["missing"]
    assert "lr is -1" in found["number"]
    assert "nan" in found["not finite"]
    assert told["loss"] > 0
    assert told["step"]["steps:mean"] == 1

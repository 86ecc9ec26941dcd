"""A vLLM engine with batches in flight: disturbed after any step, it makes the tokens it would.

On a CPU vLLM keeps no batch in flight. Here its own batch queue is forced on, in both ways that it
has, and a batch runs as late as it can (`tests/rigs/batches_in_flight.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import publish_arrays

pytestmark = [pytest.mark.process, pytest.mark.slow]

Shown = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[pytest.param("queue", marks=pytest.mark.rare), "async"])
def drilled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp(f"in-flight-{request.param}")
    models = [make_qwen3(place / name, seed=seed) for name, seed in (("a", 3), ("b", 4))]
    files = [place / "a.published", place / "b.published"]
    for model, file in zip(models, files, strict=True):
        publish_arrays(file, load_file(model / "model.safetensors"), version=1)
    command = [sys.executable, "-m", "tests.rigs.batches_in_flight", request.param, str(models[0])]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["step"] == "step_with_batch_queue"
    assert (found["scheduler"] == "AsyncScheduler") == (request.param == "async")
    return found


def tokens(shown: Shown) -> dict[int, list[int]]:
    return {one["index"]: one["tokens"] for one in shown}


def joined(first: Shown, rest: Shown) -> dict[int, list[int]]:
    later = tokens(rest)
    return {index: had + later.get(index, []) for index, had in tokens(first).items()}


def test_stopping_and_sleeping_after_any_step_change_no_token(drilled: Any) -> None:
    whole = tokens(drilled["whole"])
    for case in drilled["cases"]:
        found = joined(case["found"], case["rest"])
        assert found == {i: whole[i] for i in found}, (case["kind"], case["at"])
        if case["kind"] == "asleep":
            assert found == whole, case["at"]
            assert not case["rest"], case["at"]
    assert tokens(drilled["after"]) == whole
    stopped = {c["at"] for c in drilled["cases"] if c["kind"] == "all stopped" and c["rest"]}
    assert len(stopped) > 4, "most points lie within the samples"


def test_weights_replaced_after_any_step_make_the_tokens_that_say_so(drilled: Any) -> None:
    for swap in drilled["swaps"]:
        assert tokens(swap["found"]) == joined(swap["old"], swap["rest"]), swap["at"]
        for one in swap["found"]:
            assert one["versions"] == sorted(one["versions"]), swap["at"]
    both = [swap for swap in drilled["swaps"] if any(tokens(swap["old"]).values()) and swap["rest"]]
    assert len(both) > 4, "most swaps come between two tokens"


def test_nothing_is_in_flight_when_weights_or_memory_change(drilled: Any) -> None:
    assert len(drilled["under_way"]) > 20
    assert set(drilled["under_way"]) == {0}

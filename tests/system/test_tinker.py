"""The unmodified Tinker SDK against a live cluster."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import tinker_sdk
from tests.rigs.live_cluster import ROLLOUT, TRAIN, LiveCluster, Service
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

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
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = make_qwen3(tmp_path_factory.mktemp("model") / "tiny", seed=1)
    return made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Service]:
    nodes = {"only": [TRAIN, *[ROLLOUT] * 5]}  # older SDKs end no session: it expires
    with socket.create_server(("127.0.0.1", 0)) as free:  # the SDK comes back to the same address
        port = free.getsockname()[1]
    extra = OPEN.replace("MODEL", str(model)).replace("127.0.0.1:0", f"127.0.0.1:{port}")
    with Service(tmp_path_factory.mktemp("tinker"), nodes=nodes, extra=extra) as running:
        yield running


@pytest.fixture
def served(service: Service, model: Path) -> Served:
    return Served(service.live, str(model))


DESCRIBE = """
import json, sys
from {module} import {name} as generated
file = generated.DESCRIPTOR
def field(one):
    other = one.message_type or one.enum_type
    kind = other.name if other else ""
    return [one.name, one.type, one.is_repeated, kind]
def parts(message):
    yield message.name, {{one.number: field(one) for one in message.fields}}
    for inner in message.nested_types:
        yield from ((message.name + "." + name, found) for name, found in parts(inner))
told = dict(pair for message in file.message_types_by_name.values() for pair in parts(message))
for enum in file.enum_types_by_name.values():
    told[enum.name] = {{one.number: one.name for one in enum.values}}
print(json.dumps(told))
"""
"""A program that prints what a generated module knows of its messages and their fields."""


def described(python: Path | str, *, module: str, name: str) -> dict[str, dict[str, Any]]:
    code = DESCRIBE.format(module=module, name=name)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_messages_have_the_fields_that_the_sdk_gives_them() -> None:
    ours = described(sys.executable, module="plexclient.wire.v1", name="tinker_pb2")
    theirs = described(tinker_sdk.PYTHON, module="tinker.proto", name="tinker_public_pb2")
    assert ours.keys() <= theirs.keys()
    assert len(ours) > 15
    for message, fields in ours.items():
        assert fields.items() <= theirs[message].items(), message


@pytest.mark.parametrize("version", ["", "0.36.0", "0.30.0", "0.26.0"])
def test_every_version_of_the_sdk_does_what_it_can(served: Served, version: str) -> None:
    told = served.run("everything", version=version)
    assert told == {"version": version or "0.38.0", "wrong": {}}


def test_a_training_client_learns_and_is_told_losses_as_sums(served: Served) -> None:
    told = served.run("supervised", steps=4)
    assert told["losses"] == sorted(told["losses"], reverse=True)
    assert told["loss"] < told["losses"][-1]
    flat = [one for datum in told["logprobs"] for one in datum]
    assert [len(one) for one in told["logprobs"]] == [4, 3, 2]
    assert math.isclose(-sum(flat), told["loss"], rel_tol=1e-5)
    assert [-one for one in flat] == [one for datum in told["elementwise"] for one in datum]


def test_samplers_have_the_weights_that_they_were_made_of(served: Served) -> None:
    told = served.run("sampled")
    assert told["drawn"] == [[5, 6, 7], [5, 6, 7]]
    assert told["reasons"] == ["length", "length"]
    assert len(set(told["ids"])) == 2
    scores = told["scores"]
    assert scores["early"] == scores["early again"] == scores["named"]
    assert scores["early"][0] is None
    assert scores["early"][1:] == pytest.approx(told["trained"], abs=1e-4)
    assert told["logprobs"] == pytest.approx(scores["early"][2:], abs=1e-4)
    assert sum(scores["base"][1:]) < sum(scores["early"][1:]) < sum(scores["late"][1:])
    first, second = told["seeded"]
    assert first == second
    assert first[-1] == 6  # the stop token is kept
    assert told["stopped"] == "stop"
    assert told["top of prompt"][0] is None
    assert [len(one) for one in told["top of prompt"][1:]] == [2]
    assert told["top"] == [3] * len(first)
    assert told["many"] == 40
    assert told["base model"] == served.model
    assert "prompt_alt_tokens_k" in told["unoffered"]["text"]


def test_policy_losses_are_what_a_forward_alone_says_they_are(served: Served) -> None:
    told = served.run("reinforced")
    for loss, (ahead, back) in told["losses"].items():
        assert math.isclose(ahead["loss:sum"], back["loss:sum"], rel_tol=1e-4), loss
    assert told["clipped"]["clipfrac:mean"] > 0


def test_a_state_that_was_saved_is_gone_on_from_and_named_until_its_time_is_over(
    served: Served,
) -> None:
    told = served.run("saved")
    assert told["resumed"] == told["straight"]
    assert "overwrite=True" in told["twice"]["text"]
    assert told["over"]["type"] == told["nowhere"]["type"] == "NotFoundError"
    assert told["renamed"] == "whole"  # another name of the same directory
    assert "not of nowhere" in told["renamed wrongly"]["text"]
    assert told["metadata"] == {"epoch": "1"}
    assert told["model"] in told["runs"]
    assert told["path"] in told["names"]
    assert not [one for one in told["names"] if one.endswith("/short")]
    assert told["base"] == served.model
    assert "not offered" in told["publish"]["text"]
    other = served.run("stolen", key=THEIRS, path=told["path"])
    kinds = {other[name]["type"] for name in ("load", "sample", "delete")}
    assert (kinds, other["names"]) == ({"NotFoundError"}, 0)


def test_adapters_are_trained_sampled_from_and_gone_on_from(served: Served) -> None:
    told = served.run("adapted")
    first, last = told["losses"]
    assert last < first - 0.1
    scores = told["scores"]
    assert scores["named"] == scores["own"]
    assert scores["own"][1:] == pytest.approx(told["trained"], abs=1e-4)
    assert sum(scores["base"][1:]) < sum(scores["own"][1:])
    assert told["ends"][0] == told["ends"][1] < last
    assert told["ranks"] == [8, 8]
    assert told["is_lora"] == [True, True]


def test_two_tenants_that_share_a_device_get_what_they_get_alone(served: Served) -> None:
    alone = served.run("supervised", steps=4)
    started = [
        tinker_sdk.start(served.live, "supervised", key=key, model=served.model, steps=4)
        for key in (MINE, THEIRS)
    ]
    together = [tinker_sdk.answer(one) for one in started]
    assert together == [alone, alone]


def test_the_example_recites_what_it_learned(served: Served) -> None:
    example = str(Path(__file__).parents[2] / "examples" / "tinker_recite.py")
    started = tinker_sdk.start(served.live, example, key=MINE, model=served.model)
    *_, last = tinker_sdk.output(started).splitlines()
    assert last == "recited: 3 9 4 8 5 7 6"


def test_what_is_not_offered_is_refused_by_name_and_training_goes_on(served: Served) -> None:
    told = served.run("refused")
    found = {name: one["text"] for name, one in told["refusals"].items()}
    assert "smallest side of its targets" in found["adapter"]
    assert "neither train_attn nor train_mlp" in found["no layers"]
    assert "nowhere" in found["no model"]
    assert "stable_reinforce" in found["loss"]
    assert "loss_fn_config.clip" in found["config"]
    assert "weights has 1 numbers for 2 tokens" in found["length"]
    assert "weights: ppo takes target_tokens, logprobs" in found["not taken"]
    assert "logprobs is missing" in found["missing"]
    assert "lr is -1" in found["number"]
    assert "nan" in found["not finite"]
    assert told["loss"] > 0
    assert told["step"]["steps:mean"] == 1


def test_a_service_that_is_killed_loses_nothing_that_it_acknowledged(
    service: Service, model: Path, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    told = []
    for kills in ([], [3, 9]):
        progress.write_text("0")
        given: dict[str, Any] = {"model": str(model), "steps": 14, "progress": str(progress)}
        started = tinker_sdk.start(service.live, "watched", key=MINE, **given)
        for step in kills:
            wait_until(partial(_has_reached, progress, step), what=f"step {step}")
            service.kill()
            service.start()
        told.append(tinker_sdk.answer(started))
    assert told[0] == told[1]


def _has_reached(progress: Path, step: int) -> bool:
    return int(progress.read_text() or 0) >= step

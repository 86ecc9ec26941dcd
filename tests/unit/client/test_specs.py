"""What a job asks of a deployment arrives as it was asked."""

from __future__ import annotations

from typing import Any

import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from plexclient.ids import JobId
from plexclient.specs import AdamW, Elastic, Parallel, default_role
from plexclient.wire.v1 import common_pb2, service_pb2


def test_an_optimizer_arrives_with_every_number_it_was_given() -> None:
    zeros = AdamW(lr=0.0, beta1=0.0, beta2=0.0, weight_decay=0.0, clip_grad_norm=0.0)
    others = AdamW(lr=1e-3, eps=1e-6, clip_grad_norm=2.0, decay_vectors=True)
    for asked in (zeros, others, AdamW(), AdamW(on="host")):
        assert AdamW.from_wire(asked.to_wire()) == asked


def test_what_a_plain_client_leaves_out_takes_the_default() -> None:
    assert AdamW.from_wire(service_pb2.Optimizer(lr=1e-3)) == AdamW(lr=1e-3)
    assert AdamW.from_wire(service_pb2.Optimizer(lr=0.0, beta1=0.0)) == AdamW(lr=0.0, beta1=0.0)


def test_nothing_is_clipped_and_no_vector_decays_unless_asked() -> None:
    assert (AdamW().clip_grad_norm, AdamW().decay_vectors) == (0.0, False)


@pytest.mark.parametrize(
    ("name", "backend", "role"),
    [("reference", "fsdp", "reference"), ("policy", "vllm", "rollout"), ("actor", "noop", "actor")],
)
def test_a_name_that_is_a_role_says_it(name: str, backend: str, role: str) -> None:
    assert default_role(name, backend=backend) == role


def test_a_role_that_nothing_tells_must_be_said() -> None:
    with pytest.raises(PlexError, match=r"'refrence'.* say role=") as caught:
        default_role("refrence", backend="megatron")
    assert caught.value.code == ErrorCode.BAD_REQUEST


def test_a_layout_arrives_and_degrees_left_out_are_one() -> None:
    asked = Parallel(tp=2, dp=4, sequence_parallel=True)
    assert Parallel.from_wire(asked.to_wire()) == asked
    assert Parallel.from_wire(common_pb2.Parallel(dp=2, cp=0)) == Parallel(dp=2)


def test_an_optimizer_that_divides_by_zero_is_refused() -> None:
    with pytest.raises(PlexError, match="eps"):
        AdamW(eps=0.0)


@pytest.mark.parametrize(
    "field",
    [{"model": None}, {"backend": None}, {"dtype": float}, {"name": 7}, {"dtype": "\ud800"}],
)
def test_a_deployment_of_the_wrong_types_is_refused_by_name(field: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "actor", "model": "/model", "backend": "noop"} | field
    with pytest.raises(PlexError, match=f"bad_request: {next(iter(field))} "):
        plex.Declared(given.pop("name"), **given).to_wire(JobId("job-1"))


@pytest.mark.parametrize("on", ["", "gpu", None, 1])
def test_an_optimizer_in_no_known_place_is_refused(on: Any) -> None:
    with pytest.raises(PlexError, match=r"AdamW: on=.*'device' or 'host'") as caught:
        AdamW(on=on)
    assert caught.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"dedicated": 0}, "Elastic: dedicated"),
        ({"spot": (0, -1)}, r"Elastic: spot\[1\]"),
        ({"spot": (-1, 2)}, r"Elastic: spot\[0\]"),
        ({"spot": (3, 2)}, r"Elastic: spot\[1\]"),
        ({"spot": 3}, "Elastic: spot=3"),
        ({"serving": (2, 1)}, r"Elastic: serving\[1\]"),
        ({"serving": "many"}, "Elastic: serving='many'"),
        ({"price": {"spot": -1.0}}, r"Elastic: price\['spot'\]"),
        ({"price": {"spot": float("nan")}}, r"Elastic: price\['spot'\]"),
        ({"price": {"borrowed": 1.0}}, "price of 'borrowed'"),
        ({"shared": True, "spot": (0, 1)}, "shared=True"),
        ({"shared": True, "reserved": True}, "shared=True"),
        ({"reserved": True, "serving": (0, 1)}, "give dedicated=1"),
        ({"reserved": True, "dedicated": 0}, "Elastic: dedicated"),
    ],
)
def test_caps_and_prices_that_cannot_be_are_refused_by_name(
    wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(PlexError, match=field) as caught:
        Elastic(**wrong)
    assert caught.value.code == ErrorCode.BAD_REQUEST

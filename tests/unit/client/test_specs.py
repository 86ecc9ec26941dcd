"""What a job asks of a deployment arrives as it was asked."""

from __future__ import annotations

import pytest

from plexclient.errors import PlexError
from plexclient.specs import AdamW, Parallel
from plexclient.wire.v1 import common_pb2, service_pb2


def test_an_optimizer_arrives_with_every_number_it_was_given() -> None:
    asked = AdamW(lr=1e-3, beta1=0.0, beta2=0.98, eps=1e-6, weight_decay=0.0, clip_grad_norm=0.0)
    assert AdamW.from_wire(asked.to_wire()) == asked
    assert AdamW.from_wire(AdamW().to_wire()) == AdamW()


def test_a_plain_client_s_numbers_are_taken_as_they_are_but_for_an_eps_of_zero() -> None:
    found = AdamW.from_wire(service_pb2.Optimizer(lr=1e-3))
    assert (found.beta2, found.weight_decay, found.clip_grad_norm) == (0.0, 0.0, 0.0)
    assert found.eps == AdamW().eps


def test_a_layout_arrives_and_degrees_left_out_are_one() -> None:
    asked = Parallel(tp=2, dp=4, sequence_parallel=True)
    assert Parallel.from_wire(asked.to_wire()) == asked
    assert Parallel.from_wire(common_pb2.Parallel(dp=2, cp=0)) == Parallel(dp=2)


def test_an_optimizer_that_divides_by_zero_is_refused() -> None:
    with pytest.raises(PlexError, match="eps"):
        AdamW(eps=0.0)

"""Memory that sleeping engines give back: each byte once, and nobody else's."""

from __future__ import annotations

import pytest
import torch

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.engines import sleeping

MIB = 1 << 20


def test_weights_are_not_in_memory_once_given_back_and_can_be_written_again() -> None:
    weight = torch.ones(MIB)
    address = weight.data_ptr()
    memory = sleeping.spans([weight])
    held = sleeping.resident_bytes(memory)
    assert held > 3.9 * MIB
    assert sleeping.give_back(memory) == held
    assert sleeping.resident_bytes(memory) == 0
    weight.fill_(2)
    assert weight.data_ptr() == address
    assert float(weight.sum()) == 2 * MIB


def test_views_of_one_weight_and_tied_weights_are_one_span() -> None:
    whole = torch.ones(12, 1024)
    q, k, v = whole[:4], whole[4:8], whole[8:]
    assert sleeping.spans([v, q, k, whole, q]) == [(whole.data_ptr(), 12 * 1024 * 4)]


def test_what_lies_between_the_pieces_of_a_tensor_is_kept() -> None:
    whole = torch.ones(1024, 1024)
    assert sleeping.give_back(sleeping.spans([whole[:, :512]])) == 0
    assert float(whole.sum()) == 1024 * 1024


def test_memory_of_a_device_is_refused() -> None:
    with pytest.raises(PlexError, match="an engine on meta cannot sleep") as refused:
        sleeping.spans([torch.ones(4, device="meta")])
    assert refused.value.code is ErrorCode.BAD_REQUEST

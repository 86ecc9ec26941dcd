"""Options of a connection: limits with which nothing would go on are refused."""

from __future__ import annotations

from typing import Any

import pytest

import plexclient as plex


@pytest.mark.parametrize(
    "given",
    [
        {"max_in_flight_per_deployment": 0},
        {"max_unanswered_payload_bytes": 0},
        {"attempt_timeout_s": 0},
        {"rpc_timeout_s": -1},
        {"keepalive_s": float("nan")},
        {"retry_for_s": -1},
        {"staging_bytes_per_s": 0},
    ],
)
def test_a_limit_that_would_stop_every_call_is_refused_by_its_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(plex.PlexError, match=f"ClientOptions.{name}") as caught:
        plex.ClientOptions(**given)
    assert caught.value.code == "bad_request"


def test_nothing_need_be_tried_again_and_operations_may_take_for_ever() -> None:
    assert plex.ClientOptions(retry_for_s=0, operation_timeout_s=float("inf")).retry_for_s == 0

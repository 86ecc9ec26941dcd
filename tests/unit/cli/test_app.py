"""What commands ask of a cluster: values that no message can carry are refused in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from plexsvc.cli.app import At
from plexsvc.errors import PlexError


@pytest.mark.parametrize(
    ("method", "fields"),
    [("SetQuota", {"most": 2**70}), ("ChangeNode", {"node_id": "node-\udcff"})],
)
def test_a_value_that_no_message_can_carry_is_refused(method: str, fields: dict[str, Any]) -> None:
    with pytest.raises(PlexError, match="bad_request: not a value that can be sent"):
        At(address="127.0.0.1:1", token="t").ask(method, **fields)

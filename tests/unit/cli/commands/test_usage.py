"""When the time that `plexctl cost --since` names began."""

from __future__ import annotations

import pytest

from plexsvc.cli.commands.usage import _since_us
from plexsvc.errors import PlexError


@pytest.mark.parametrize(
    ("text", "since_us"),
    [
        ("", 0),
        ("2026-01-31", 1_769_817_600_000_000),
        ("2026-01-31T02:00:00+02:00", 1_769_817_600_000_000),
        ("1969-01-31", 0),
        ("9999999d", 0),
    ],
)
def test_a_day_is_of_utc_unless_it_says_otherwise(text: str, since_us: int) -> None:
    assert _since_us(text) == since_us


def test_a_time_that_is_yet_to_come_is_refused() -> None:
    with pytest.raises(PlexError, match=r"bad_request.*yet to come"):
        _since_us("9000-01-01")
    with pytest.raises(PlexError, match=r"bad_request.*neither a day"):
        _since_us("yesterday")

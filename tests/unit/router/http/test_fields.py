"""Fields of a request are within bounds, or refused by their names."""

from __future__ import annotations

from typing import Any

import pytest

from plexsvc.errors import PlexError
from plexsvc.router.http.fields import real, text, whole


def test_what_is_not_given_has_its_default_also_one_that_may_not_be_given() -> None:
    assert whole({}, "max_tokens", default=0, least=1) == 0
    assert real({"top_p": None}, "top_p", default=0.0, least=1e-6) == 0.0


@pytest.mark.parametrize(
    ("read", "found", "words"),
    [
        (whole, None, "n: it must be a whole number from 0 to 2147483647, not None"),
        (whole, True, "n: it must be a whole number"),
        (whole, 1.0, "n: it must be a whole number"),
        (whole, -1, "n: it must be a whole number"),
        (real, "1", "n: it must be a number from 0 to 1e\\+06, not '1'"),
        (real, float("nan"), "n: it must be a number"),
        (text, "", "n: it must be a text, not ''"),
        (text, "a" * 2049, "n: it must be a text of up to 2048 characters"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_field(
    read: Any, found: object, words: str
) -> None:
    with pytest.raises(PlexError, match=words) as refused:
        read({"n": found}, "n")
    assert refused.value.facts["field"] == "n"

"""Tokens name their tenants until they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.auth import Tenants
from tests.fakes.fake_clock import FakeClock

TOKENS = {"short": "lab", "long": "ops"}


def tenants_at(offset_us: int) -> Tenants:
    """Return tenants of which `short`'s token ends `offset_us` after now."""
    clock = FakeClock()
    now = datetime.fromtimestamp(clock.wall_us() / 1e6, UTC)
    return Tenants(TOKENS, ends={"short": now + timedelta(microseconds=offset_us)}, clock=clock)


def refusal(tenants: Tenants, token: str) -> PlexError:
    found = tenants.refusal([("authorization", f"Bearer {token}")])
    assert found is not None
    return found


def test_a_token_that_ended_is_refused_and_the_others_are_not() -> None:
    tenants = tenants_at(0)
    error = refusal(tenants, "short")
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "router.token_ends" in error.message
    assert tenants.tenant_of([("authorization", "Bearer long")]) == "ops"


def test_a_token_names_its_tenant_until_it_ends() -> None:
    assert tenants_at(1_000_000).tenant_of([("authorization", "Bearer short")]) == "lab"


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        ({"other": datetime(2027, 1, 31, tzinfo=UTC)}, "names no token"),
        ({"short": datetime(2027, 1, 31)}, "no offset from UTC"),  # noqa: DTZ001 - as TOML has it
    ],
)
def test_an_end_that_cannot_be_is_refused_without_a_word_of_the_token(
    ends: dict[str, datetime], what: str
) -> None:
    with pytest.raises(PlexError, match=what) as caught:
        Tenants(TOKENS, ends=ends)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert "short" not in caught.value.message

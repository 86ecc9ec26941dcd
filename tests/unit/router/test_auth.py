"""Tokens name their tenants until they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.auth import Caller, Tenants
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
    assert tenants.caller_of([("authorization", "Bearer long")]).tenant == "ops"


def test_a_token_names_its_tenant_until_it_ends() -> None:
    caller = tenants_at(1_000_000).caller_of([("authorization", "Bearer short")])
    assert caller.tenant == "lab"


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


SECRET = "tok-1.secret"
BEARER = f"Bearer {SECRET}"


def table(revision: int = 1, **fields: Any) -> pb.WatchTokensReply:
    """Return a scheduler's table with one token."""
    digest = sha256(SECRET.encode()).digest()
    given = {"token_id": "tok-1", "owner": "lab", "scope": "submit", "hash": digest} | fields
    return pb.WatchTokensReply(revision=revision, tokens=[pb.TokenView(**given)])


def caller(tenants: Tenants, token: str = SECRET) -> Caller:
    return tenants.caller_of([("authorization", f"Bearer {token}")])


def learned(**fields: Any) -> Tenants:
    tenants = Tenants(TOKENS, operators=["ops"])
    tenants.learn(table(**fields))
    return tenants


@pytest.mark.parametrize("token", ["tok-1.other", "tok-2.secret", "tok-1", "secret", "tok-1.é"])
def test_a_token_of_the_store_is_known_by_the_whole_of_it(token: str) -> None:
    tenants = learned()
    assert caller(tenants).tenant == "lab"
    assert refusal(tenants, token).code is ErrorCode.UNAUTHENTICATED


def test_before_the_table_came_its_tokens_are_neither_known_nor_unknown() -> None:
    tenants = Tenants(TOKENS)
    assert refusal(tenants, SECRET).code is ErrorCode.UNAVAILABLE
    assert refusal(tenants, "other").code is ErrorCode.UNAUTHENTICATED
    assert caller(tenants, "long").tenant == "ops"


@pytest.mark.parametrize(
    ("scope", "is_operator", "may_change"),
    [("read", False, False), ("submit", False, True), ("admin", True, True)],
)
def test_a_scope_says_what_a_token_may(scope: str, is_operator: bool, may_change: bool) -> None:
    found = caller(learned(scope=scope, owner="ops"))
    assert found.is_operator is is_operator
    if may_change:
        found.check_may_change("CreateJob")
    else:
        with pytest.raises(PlexError, match=r"may only read, and CreateJob.*--scope submit"):
            found.check_may_change("CreateJob")
    assert caller(learned(), "long").is_operator


def test_a_token_for_a_node_lets_in_no_caller_and_no_other_lets_in_a_node() -> None:
    joins = learned(scope="join", owner="", name="n1")
    context: Any = SimpleNamespace(invocation_metadata=lambda: [("authorization", BEARER)])
    assert joins.refusal(context.invocation_metadata()) is None
    assert joins.joining(context) == "tok-1"
    with pytest.raises(PlexError, match="lets in a node") as refused:
        joins.caller(context)
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    with pytest.raises(PlexError, match="lets in no node") as refused:
        learned().joining(context)
    assert refused.value.code is ErrorCode.FORBIDDEN
    with pytest.raises(PlexError, match="revoked") as refused:
        learned(scope="join", owner="", revoked_us=1).joining(context)
    assert refused.value.code is ErrorCode.UNAUTHENTICATED


def test_an_older_table_that_comes_late_changes_nothing() -> None:
    tenants = learned(revision=2)
    tenants.learn(table(1, revoked_us=5))
    assert caller(tenants).tenant == "lab"
    tenants.learn(table(3, revoked_us=5))
    assert "tok-1 of tenant 'lab' was revoked" in refusal(tenants, SECRET).message


def test_a_token_of_the_store_expires() -> None:
    clock = FakeClock()
    tenants = Tenants({}, clock=clock)
    tenants.learn(table(expires_us=clock.wall + 1))
    assert caller(tenants).tenant == "lab"
    clock.wall += 1
    assert "expired at" in refusal(tenants, SECRET).message


async def endless() -> AsyncGenerator[int]:
    yield 1
    await asyncio.Event().wait()


@pytest.mark.parametrize("waits", [True, False])
async def test_what_is_open_ends_by_name_when_its_token_is_revoked(waits: bool) -> None:
    tenants = learned()
    messages = caller(tenants).through(endless())
    assert await anext(messages) == 1
    if waits:
        asyncio.get_running_loop().call_soon(tenants.learn, table(2, revoked_us=5))
    else:
        tenants.learn(table(2, revoked_us=5))
    with pytest.raises(PlexError, match="was revoked") as caught:
        await anext(messages)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED


async def test_what_is_open_ends_by_name_when_its_token_expires() -> None:
    clock = SystemClock()
    tenants = Tenants({}, clock=clock)
    tenants.learn(table(expires_us=clock.wall_us() + 20_000))
    found = caller(tenants)
    with pytest.raises(PlexError, match="expired at"):
        async with found.valid():
            await asyncio.Event().wait()


async def test_time_that_ran_out_for_something_else_is_not_the_tokens() -> None:
    with pytest.raises(TimeoutError):
        async with caller(learned()).valid():
            raise TimeoutError

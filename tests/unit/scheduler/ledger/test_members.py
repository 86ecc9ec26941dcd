"""Members: one token, one key, one certificate; who was shut out stays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import SHUT_OUT, read_shut_out
from plexsvc.scheduler.ledger.members import Members
from plexsvc.store.rows import MemberRow, TokenRow
from tests.fakes.fake_clock import FakeClock
from tests.rigs.keys import KEYS

Open = Callable[[], Members]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def rows() -> list[MemberRow]:
    return []


@pytest.fixture
def opened(tmp_path: Path, clock: FakeClock, rows: list[MemberRow]) -> Open:
    async def remember(row: MemberRow) -> None:
        rows.append(row)

    keys = replace(KEYS, file=tmp_path / "keys.json")
    return lambda: Members(rows, keys=keys, clock=clock, remember=remember)


def token(token_id: str = "tok-1", *, name: str = "", created_us: int = 0) -> TokenRow:
    return TokenRow(
        token_id=token_id,
        tenant="",
        scope="join",
        name=name,
        hash=b"",
        created_us=created_us,
        expires_us=1 << 60,
        revoked_us=0,
    )


def request(node_id: str = "n1", key: str | None = None) -> str:
    return certificates.request_for(key or certificates.new_key(), node_id=node_id)


async def test_a_token_is_for_the_key_that_it_is_first_shown_with(
    opened: Open, rows: list[MemberRow]
) -> None:
    members, key = opened(), certificates.new_key()
    given = await members.issue(request(key=key), token=token())
    assert certificates.read(given.certificate).node_id == "n1"
    assert await members.issue(request(key=key), token=token()) == given
    assert await opened().issue(request(key=key), token=token()) == given  # after a restart
    assert rows == [given]
    assert members.has_token("tok-1") == "n1"
    for other in (request(), request("n2", key)):
        with pytest.raises(PlexError, match="was used by node 'n1'") as refused:
            await members.issue(other, token=token())
        assert refused.value.code is ErrorCode.UNAUTHENTICATED
    assert rows == [given]


async def test_a_token_for_one_name_lets_in_no_other(opened: Open, rows: list[MemberRow]) -> None:
    with pytest.raises(PlexError, match="is for node 'n2'") as refused:
        await opened().issue(request("n1"), token=token(name="n2"))
    assert refused.value.code is ErrorCode.FORBIDDEN
    assert rows == []
    await opened().issue(request("n2"), token=token(name="n2"))


@pytest.mark.parametrize("name", ["", "../n", "a b", "-n", "n" * 60])
async def test_a_name_that_no_path_could_have_is_refused(opened: Open, name: str) -> None:
    with pytest.raises(PlexError, match="name is"):
        await opened().issue(request(name), token=token())


async def test_who_was_shut_out_comes_back_with_a_newer_token_for_its_name_alone(
    opened: Open, rows: list[MemberRow], clock: FakeClock, tmp_path: Path
) -> None:
    members, key = opened(), certificates.new_key()
    given = await members.issue(request(key=key), token=token(name="n1"))
    other = await members.issue(request("n2"), token=token("tok-2"))
    assert read_shut_out(tmp_path / SHUT_OUT) == set()
    await clock.passes(5)
    assert [row.serial for row in await members.shut_out("n1")] == [given.serial]
    assert read_shut_out(tmp_path / SHUT_OUT) == {given.serial}
    assert members.is_shut_out("n1")
    assert not members.is_shut_out("n2")
    kept = len(rows)
    for one in (members, opened()):
        for made, tried in (
            (request(key=key), token(name="n1")),
            (request(), token("tok-3", created_us=1 << 50)),
            (request(), token("tok-4", name="n1")),
            (request(), None),
        ):
            with pytest.raises(PlexError, match="'n1' was shut out") as refused:
                await one.issue(made, token=tried)
            assert refused.value.code is ErrorCode.FORBIDDEN
    assert len(rows) == kept
    again = await opened().issue(request(), token=token("tok-5", name="n1", created_us=1 << 50))
    assert not opened().is_shut_out("n1")
    assert read_shut_out(tmp_path / SHUT_OUT) == {given.serial}
    assert again.serial not in {given.serial, other.serial}


async def test_a_certificate_is_renewed_once_a_third_of_its_life_is_left(
    opened: Open, clock: FakeClock, rows: list[MemberRow]
) -> None:
    members, key = opened(), certificates.new_key()
    made = request(key=key)
    first = await members.issue(made, token=token())
    life_us = first.expires_us - first.issued_us
    await clock.passes(life_us // 3 * 2 - 1)
    assert await members.renewed(first.serial) is None
    assert await members.renewed("unknown") is None
    await clock.passes(life_us // 3)
    second = await members.renewed(first.serial)
    assert second is not None
    assert second.expires_us > first.expires_us
    assert (second.node_id, second.token_id, second.key) == ("n1", first.token_id, first.key)
    assert certificates.is_of(second.certificate, key)
    for one in (members, opened()):  # it did not hear of it; the service started again
        assert await one.renewed(first.serial) == second
        assert await one.renewed(second.serial) is None
        assert await one.issue(made, token=token()) == second
    assert len(rows) == 2
    await clock.passes(life_us)
    assert await members.renewed(first.serial) is None  # it has ended


async def test_who_was_shut_out_gets_no_further_certificate(opened: Open, clock: FakeClock) -> None:
    members = opened()
    first = await members.issue(request(), token=token())
    await clock.passes((first.expires_us - first.issued_us) // 10 * 9)
    second = await members.renewed(first.serial)
    assert second is not None
    out = {row.serial for row in await members.shut_out("n1")}
    assert out == {first.serial, second.serial}
    assert await members.renewed(first.serial) is None


async def test_a_launcher_gets_the_certificate_that_it_had_for_a_key(opened: Open) -> None:
    members, key = opened(), certificates.new_key()
    given = await members.issue(request(key=key))
    assert await members.issue(request(key=key)) == given
    assert (await members.issue(request())).serial != given.serial


async def test_only_who_was_given_a_certificate_can_be_shut_out(opened: Open) -> None:
    with pytest.raises(PlexError, match="was given no certificate") as refused:
        await opened().shut_out("left")
    assert refused.value.code is ErrorCode.NOT_FOUND

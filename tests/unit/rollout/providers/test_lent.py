"""Lent engines: there while their leases are renewed, refused where their terms cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from plexsvc.errors import PlexError
from plexsvc.ids import DeploymentId
from plexsvc.rollout.core.pool import Fact, SlotCame, SlotGone, SlotNoticed
from plexsvc.rollout.providers.lent import GRACE_US, MAX_LENT, LentEngines, Offer
from tests.fakes.fake_clock import FakeClock, settle

CHAT = Offer(name="chat", address="host:1", model="/m/a", price=0.5)
CAME = SlotCame(slot_id="serving/chat", price=0.5, model="/m/a", is_passed_on=True)
LEASE_US = 10_000_000


@asynccontextmanager
async def told_by(lent: LentEngines, clock: FakeClock) -> AsyncIterator[list[Fact]]:
    """Yield what a running provider has told so far."""
    told: list[Fact] = []
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lent.run(told.append))
        await settle()
        yield told
        await clock.passes(0)
        running.cancel()


async def test_an_engine_is_there_while_its_lease_is_renewed() -> None:
    clock = FakeClock()
    lent = LentEngines(clock)
    async with told_by(lent, clock) as told:
        lent.lend(CHAT, lease_us=LEASE_US)
        await clock.passes(LEASE_US - 1)
        lent.lend(CHAT, lease_us=LEASE_US)
        await clock.passes(LEASE_US - 1)
        assert told == [CAME]
        assert (
            await lent.start("serving/chat", number=1, deployment_id=DeploymentId("d")) == "host:1"
        )
        await clock.passes(200_000)
        assert told == [CAME, SlotGone(slot_id="serving/chat")]
        with pytest.raises(PlexError, match="lent no more"):
            await lent.start("serving/chat", number=2, deployment_id=DeploymentId("d"))


async def test_one_that_is_withdrawn_is_noticed_then_gone_and_may_come_again() -> None:
    clock = FakeClock()
    lent = LentEngines(clock)
    gone = SlotGone(slot_id="serving/chat")
    async with told_by(lent, clock) as told:
        lent.lend(CHAT, lease_us=0)  # nobody knows it: nothing to withdraw
        lent.lend(CHAT, lease_us=LEASE_US)
        await clock.passes(100_000)
        lent.lend(CHAT, lease_us=0)
        await clock.passes(100_000)
        assert told == [CAME, SlotNoticed(slot_id="serving/chat")]
        lent.lend(CHAT, lease_us=LEASE_US)
        await clock.passes(100_000)
        assert told[2:] == [CAME]
        lent.lend(CHAT, lease_us=0)
        await clock.passes(100_000)
        await clock.passes(GRACE_US)
        assert told[3:] == [SlotNoticed(slot_id="serving/chat"), gone]


async def test_another_process_of_that_name_is_another_instance() -> None:
    clock = FakeClock()
    lent = LentEngines(clock)
    async with told_by(lent, clock) as told:
        lent.lend(CHAT, lease_us=LEASE_US)
        await clock.passes(100_000)
        lent.lend(replace(CHAT, address="host:2"), lease_us=LEASE_US)
        await clock.passes(100_000)
        assert told == [CAME, SlotGone(slot_id="serving/chat"), CAME]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"price": -1.0}, "price: is -1.0"),
        ({"price": float("nan")}, "price: is nan"),
        ({"name": "a/b"}, "name: is 'a/b'"),
        ({"model": "/m/b"}, "model: is /m/b, and serving/chat is lent with /m/a already"),
    ],
)
def test_terms_that_cannot_be_are_refused_by_field(wrong: dict[str, object], said: str) -> None:
    lent = LentEngines(FakeClock())
    lent.lend(CHAT, lease_us=LEASE_US)
    with pytest.raises(PlexError, match=said) as caught:
        lent.lend(replace(CHAT, **wrong), lease_us=LEASE_US)  # type: ignore[arg-type]
    assert caught.value.facts["field"] == said.partition(":")[0]
    assert lent.slots() == {"serving/chat": True}


def test_leases_and_their_number_are_bounded() -> None:
    lent = LentEngines(FakeClock())
    with pytest.raises(PlexError, match="lease_us: is 60000001"):
        lent.lend(CHAT, lease_us=60_000_001)
    for number in range(MAX_LENT):
        lent.lend(replace(CHAT, name=f"n{number}"), lease_us=LEASE_US)
    with pytest.raises(PlexError, match="the most that may be"):
        lent.lend(CHAT, lease_us=LEASE_US)
    lent.lend(replace(CHAT, name="n0"), lease_us=LEASE_US)


def test_two_tenants_do_not_lend_to_each_other() -> None:
    lent = LentEngines(FakeClock())
    one = replace(CHAT, owner="one", lend_to=frozenset({"two", "three"}))
    other = replace(CHAT, name="other", owner="two")
    lent.lend(one, lease_us=LEASE_US)
    with pytest.raises(PlexError, match=r"lend_to: has 'one', and its engine serving/chat is"):
        lent.lend(other, lease_us=LEASE_US)
    lent.lend(replace(other, lend_to=frozenset({"three"})), lease_us=LEASE_US)
    lent.lend(replace(other, name="own", owner="one"), lease_us=LEASE_US)
    lent.lend(replace(other, name="everybody's", owner=""), lease_us=LEASE_US)

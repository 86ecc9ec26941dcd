"""What a manager is told of its deployments: again until it has it, and by its successor too."""

from __future__ import annotations

from typing import cast

import grpc
import grpc.aio
import pytest

from plexclient.wire.v1 import rollout_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.links import SILENT_LOOKS, START_LOOKS, LedDeployment, ManagerLink
from tests.rigs.keys import KEYS

ADDRESS = "unix:i0"


class FakeManager:
    """A manager that is away now and then; keeps what it was told."""

    def __init__(self) -> None:
        self.is_away = False
        self.refuses = False
        self.told: list[str] = []

    async def ChangeInstance(
        self,
        request: rollout_pb2.ChangeInstanceRequest,
        timeout: float,  # noqa: ASYNC109 - the stub's
    ) -> rollout_pb2.ChangeInstanceReply:
        assert timeout > 0
        if self.refuses:
            raise PlexError(ErrorCode.NOT_FOUND, "no such instance")
        if self.is_away:
            empty = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "no")
        self.told.append(str(request.WhichOneof("change")))
        return rollout_pb2.ChangeInstanceReply()


class FakeLink:
    """A link to a `FakeManager`."""

    def __init__(self) -> None:
        self.manager = FakeManager()


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


def led(link: FakeLink) -> LedDeployment:
    return LedDeployment("job/rollout", "job", cast("ManagerLink", link), SystemClock())


async def test_a_drain_that_meets_a_manager_that_is_away_is_ordered_again(link: FakeLink) -> None:
    deployment = led(link)
    link.manager.is_away = True
    await deployment.drain(ADDRESS)
    assert deployment.leaving == {ADDRESS: {"drains": True}}
    await deployment.tell_again()
    link.manager.is_away = False
    await deployment.tell_again()
    await deployment.tell_again()
    assert link.manager.told == ["drains"]
    assert not deployment.has_untold


async def test_an_end_is_told_after_a_drain_that_was(link: FakeLink) -> None:
    deployment = led(link)
    await deployment.drain(ADDRESS)
    await deployment.drop(ADDRESS, because="its process ended")
    assert link.manager.told == ["drains", "ended"]
    assert deployment.leaving == {}


async def test_an_end_takes_the_place_of_a_drain_that_was_not_told(link: FakeLink) -> None:
    deployment = led(link)
    await deployment.add(ADDRESS, kind="spot")
    link.manager.is_away = True
    await deployment.drain(ADDRESS)
    await deployment.drop(ADDRESS, because="its process ended")
    link.manager.is_away = False
    await deployment.tell_again()
    assert link.manager.told == ["joins_as", "ended"]
    assert deployment.others == {}


async def test_what_a_manager_refuses_is_not_ordered_for_ever(link: FakeLink) -> None:
    deployment = led(link)
    link.manager.refuses = True
    await deployment.drain(ADDRESS)
    await deployment.drop(ADDRESS, because="its process ended")
    assert not deployment.has_untold


async def test_a_manager_that_starts_is_given_longer_than_one_that_falls_silent() -> None:
    link = ManagerLink("node", 0, KEYS)
    assert not any(link.is_silent() for _ in range(START_LOOKS - 1))
    link.serves_at("unix:/manager")
    link.has_beaten = True
    assert not any(link.is_silent() for _ in range(SILENT_LOOKS))
    assert link.is_silent()


async def test_a_manager_that_was_silent_before_it_was_found_is_killed_as_soon() -> None:
    link = ManagerLink("node", 0, KEYS)
    link.serves_at("unix:/manager")
    assert [link.is_silent() for _ in range(START_LOOKS)].index(True) == SILENT_LOOKS - 1


async def test_a_manager_that_never_beats_is_killed_in_the_end() -> None:
    link = ManagerLink("node", 0, KEYS)
    assert [link.is_silent() for _ in range(START_LOOKS)].index(True) == START_LOOKS - 1


async def test_channels_to_processes_that_are_long_gone_are_closed() -> None:
    link = ManagerLink("node", 0, KEYS)
    for number in range(4):
        link.serves_at(f"unix:m{number}")
        link.serves_at(f"unix:m{number}")
        await link.close(but=2)
    assert len(link.channels) == 2
    assert link.address == "unix:m3"
    await link.close()
    assert not link.channels

"""The catalogue of published versions: handed out again, found by any of their numbers, kept."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.ledger.jobs import Published
from plexsvc.scheduler.orders.versions import Versions

ACTOR = DeploymentId("job/actor")


def published(number: int, *, incarnation: int = 1) -> Published:
    return Published(version=VersionId(ACTOR, incarnation, number), nodes=(NodeId("n0"),))


def numbers(gone: list[Published]) -> list[int]:
    return [one.version.version for one in gone]


def test_a_state_that_has_not_changed_is_handed_out_again_under_both_numbers() -> None:
    versions = Versions(keep=1)
    versions.add(published(3))
    assert versions.hand_out(ACTOR, incarnation=1, number=5) == published(3)
    assert versions.find(ACTOR, 5) == versions.find(ACTOR, 3) == published(3)
    versions.changed(ACTOR)
    assert versions.hand_out(ACTOR, incarnation=1, number=7) is None
    with pytest.raises(PlexError, match="version 7 of job/actor is not published") as caught:
        versions.find(ACTOR, 7)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_another_incarnation_has_a_state_of_its_own() -> None:
    versions = Versions(keep=1)
    versions.add(published(3))
    assert versions.hand_out(ACTOR, incarnation=2, number=1) is None


def test_what_is_used_stays_beyond_the_newest_and_beyond_its_deployment() -> None:
    versions = Versions(keep=1)
    for number in (1, 2, 3):
        versions.add(published(number))
    first = published(1).version
    assert numbers(versions.surplus(used={first})) == [2]
    versions.forget(ACTOR)
    assert numbers(versions.surplus(used={first})) == [3]
    assert numbers(versions.surplus(used=set())) == [1]

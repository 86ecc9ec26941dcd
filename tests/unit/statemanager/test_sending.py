"""Which reader of a site gets a version from its holder, and whom the others ask."""

from __future__ import annotations

from plexclient.wire.v1.statemanager_pb2 import ReadVersionRequest
from plexsvc.statemanager.sending import MAX_RELAYS, Relays


def asked(version: int, reader: str, *, site: str = "far", without: str = "") -> ReadVersionRequest:
    return ReadVersionRequest(
        deployment_id="d", version=version, site=site, reader=reader, without=without
    )


def test_the_first_reader_of_a_site_gets_a_version_and_the_others_ask_it() -> None:
    relays = Relays("here")
    assert not relays.instead(asked(1, "a"))
    assert not relays.instead(asked(1, "a")), "what breaks off goes on"
    assert relays.instead(asked(1, "b")) == "a"
    assert not relays.instead(asked(2, "b")), "each version has its own"
    assert not relays.instead(asked(1, "c", site="elsewhere"))
    assert not relays.instead(asked(1, "n", site="here"))
    assert not relays.instead(asked(1, "n", site=""))


def test_who_was_failed_by_a_neighbour_takes_its_place_once() -> None:
    relays = Relays("")
    relays.instead(asked(1, "a"))
    assert not relays.instead(asked(1, "b", without="a"))
    assert relays.instead(asked(1, "c", without="a")) == "b"
    assert relays.instead(asked(1, "a")) == "b"


def test_the_oldest_versions_are_forgotten() -> None:
    relays = Relays("")
    for version in range(MAX_RELAYS + 1):
        relays.instead(asked(version, "a"))
    assert relays.instead(asked(1, "b")) == "a"
    assert not relays.instead(asked(0, "b"))

"""Versions reach another node once, as deltas where that is sooner, bit by bit as published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights.checksums import BLOCK_BYTES
from tests.rigs.byte_holders import Between, Passed, between
from tests.rigs.state_daemon import Client, Daemon
from tests.rigs.waiting import wait_until

STATE_BYTES = 20 << 20
"""Five blocks."""
KEYS_OF_TWO = f"host_bytes = {256 << 20}\nstaging_bytes = 1048576"


@dataclass(slots=True)
class Pair:
    """A trainer with its state manager, and another node with one."""

    here: Daemon
    there: Daemon
    trainer: Client
    stack: ExitStack

    def holder(self, address: str = "") -> dict[str, Any]:
        return {"node_id": "n0", "state_manager": address or self.here.ready["address"]}

    def publish(self, version: int, *, share: float = 0.01) -> str:
        """Change a share of the elements and publish; return the hash of the bytes."""
        self.trainer("change", name="w", seed=version, share=share)
        self.here.published("trainer", version)
        reply = self.trainer("open_version", deployment_id="job/actor", version=version)
        self.trainer("drop_held")
        return str(reply)

    def release(self, version: int, *, daemon: Daemon | None = None) -> None:
        request = statemanager_pb2.ReleaseVersionRequest(deployment_id="job/actor", version=version)
        (daemon or self.here).stub.ReleaseVersion(request, timeout=30)
        self.trainer("allocate", regions=[])

    def fetch_new(self, reader: Client, version: int, *, share: float = 0.01) -> int:
        """Publish and fetch; return the bytes that came over the line."""
        wanted, before = self.publish(version, share=share), self.arrived()
        assert self.fetch(reader, version) == wanted
        return self.arrived() - before

    def copy(self, version: int, *, address: str = "") -> statemanager_pb2.PublishReply:
        """Have the other node keep a copy, and no longer the one before the last."""
        if version > 2:
            self.release(version - 2, daemon=self.there)
        published = statemanager_pb2.PublishedVersion(
            deployment_id="job/actor",
            version=version,
            holders=[statemanager_pb2.VersionHolder(**self.holder(address))],
        )
        return self.there.publish("trainer", version, copy_of=published, job_id="job")

    def arrived(self) -> int:
        return int(self.there.inventory().arrived_bytes)

    def fetch(self, reader: Client, version: int, *, address: str = "") -> str:
        named = {"deployment_id": "job/actor", "version": version}
        return str(reader("fetch_version", version=named, holder=self.holder(address)))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two nodes; what the trainer holds is random."""
    with ExitStack() as stack:
        daemons = []
        for name in ("n0", "n1"):
            (tmp_path / name).mkdir(mode=0o700)
            daemons.append(
                Daemon(
                    tmp_path / name,
                    stack,
                    keys=KEYS_OF_TWO,
                    devices=1,
                    node_id=name,
                    device_bytes=32 << 20,
                )
            )
        trainer = daemons[0].client("trainer")
        trainer("allocate", regions=[{"name": "w", "nbytes": STATE_BYTES}])
        trainer("fill", name="w", seed=0)
        piece = {
            "kind": "param",
            "name": "w",
            "global_shape": [STATE_BYTES // 4],
            "start": [0],
            "size": [STATE_BYTES // 4],
            "stride": [1],
            "dtype": "F32",
            "region": "w",
        }
        trainer("index", pieces=[piece])
        yield Pair(daemons[0], daemons[1], trainer, stack)


def test_the_next_version_comes_once_and_as_a_delta_to_the_last(pair: Pair) -> None:
    readers = [pair.there.client(f"reader-{number}") for number in range(2)]
    sizes = []
    for version in (1, 2, 3):
        sizes.append(pair.fetch_new(readers[0], version))
        before = pair.arrived()
        assert pair.fetch(readers[1], version) == readers[0]("hash_held")
        assert pair.arrived() == before
    assert sizes[0] == STATE_BYTES
    assert max(sizes[1:]) < STATE_BYTES / 50
    assert pair.there.inventory().host_bytes_used == STATE_BYTES, "the newest alone stays"
    for reader in readers:
        reader.process.kill()
    wait_until(lambda: pair.there.inventory().host_bytes_used == 0, what="the job left")


def test_whole_blocks_are_sent_where_most_has_changed_and_where_the_base_is_gone(
    pair: Pair,
) -> None:
    reader = pair.there.client("reader")
    pair.fetch_new(reader, 1)
    assert pair.fetch_new(reader, 2, share=0.9) == STATE_BYTES
    pair.release(2)
    assert pair.fetch_new(reader, 3) == STATE_BYTES
    assert pair.fetch_new(reader, 4) < STATE_BYTES / 50


class Spoiling:
    """Spoils, after a block, what passes once."""

    def __init__(self, daemon: Daemon, how: str) -> None:
        self.daemon, self.how = daemon, how
        self.may_go_on = threading.Event()

    def __call__(self, passed: Passed) -> None:
        if not self.how or passed.chunk.offset < BLOCK_BYTES:
            return
        how, self.how = self.how, ""
        if how == "dies":
            self.daemon.process.kill()
        if how == "breaks":
            raise ConnectionResetError
        if how == "stalls":
            passed.line.wait_for_end()
        if how == "waits":
            self.may_go_on.wait(60)
        else:
            passed.data[-1] ^= 1


@contextmanager
def spoilt(daemon: Daemon, how: str) -> Iterator[tuple[Between, Spoiling, str]]:
    """Stand between a daemon and its readers; yield where they reach it, too."""
    place = Path(daemon.ready["data_socket"]).parent / (how or "none").replace(" ", "-")
    place.mkdir(mode=0o700)
    address, spoiling = f"unix:{place}/state.sock", Spoiling(daemon, how)
    with between(daemon.stub, address, spoiling) as servicer:
        yield servicer, spoiling, address


@pytest.mark.parametrize(
    "how", ["breaks", "turns a bit", pytest.param("stalls", marks=pytest.mark.rare)]
)
def test_what_is_spoilt_goes_on_after_the_last_whole_block(pair: Pair, how: str) -> None:
    reader = pair.there.client("reader")
    pair.fetch_new(reader, 1)
    wanted = pair.publish(2)
    with spoilt(pair.here, how) as (servicer, _, address):
        assert pair.fetch(reader, 2, address=address) == wanted
    first, second = servicer.told
    assert (first.offset, second.offset) == (0, BLOCK_BYTES)
    assert first.HasField("base")
    assert second.HasField("base") == (how != "turns a bit"), "a delta that is wrong is the last"
    assert pair.there.inventory().host_bytes_used == STATE_BYTES


def test_nothing_of_a_broken_version_is_visible_and_the_last_one_stays(pair: Pair) -> None:
    reader = pair.there.client("reader")
    pair.fetch_new(reader, 1)
    pair.publish(2)
    with spoilt(pair.here, "breaks") as (_, _, address):
        pair.here.process.kill()
        pair.here.process.wait()
        with pytest.raises(PlexError, match="could not be read") as caught:
            pair.fetch(reader, 2, address=address)
    assert caught.value.code == ErrorCode.UNAVAILABLE
    assert pair.there.inventory().host_bytes_used == STATE_BYTES
    reader("allocate", regions=[])


def test_the_last_copy_stays_whole_when_the_node_is_killed_that_sends_the_next(pair: Pair) -> None:
    reader, wanted = pair.there.client("reader"), ""

    def held(version: int) -> str:
        reply = reader("open_version", deployment_id="job/actor", version=version)
        reader("drop_held")
        return str(reply)

    for version in range(1, 5):
        wanted = pair.publish(version, share=0.5)
        assert pair.copy(version).error.code == ""
        assert held(version) == wanted
        assert pair.there.inventory().host_bytes_used == min(version, 2) * STATE_BYTES
    pair.publish(5, share=0.5)
    with spoilt(pair.here, "dies") as (_, _, address):
        assert pair.copy(5, address=address).error.code == "unavailable"
    assert held(4) == wanted
    with pytest.raises(PlexError, match="not on this node"):
        held(5)


def test_a_successor_of_the_readers_state_manager_fetches_anew(pair: Pair) -> None:
    reader = pair.there.client("reader")
    pair.fetch_new(reader, 1)
    assert pair.arrived() == STATE_BYTES
    pair.there.process.kill()
    pair.there.process.wait()
    other = Daemon(
        Path(pair.there.ready["data_socket"]).parent,
        pair.stack,
        keys=KEYS_OF_TWO,
        devices=1,
        node_id="n1",
        device_bytes=32 << 20,
    )
    pair.there = other
    assert pair.fetch_new(other.client("again"), 2) == STATE_BYTES


@pytest.fixture
def far_site(pair: Pair, tmp_path: Path) -> list[Daemon]:
    """Three further nodes at another site than the trainer's."""
    found = []
    for name in ("f0", "f1", "f2"):
        (tmp_path / name).mkdir(mode=0o700)
        found.append(
            Daemon(
                tmp_path / name,
                pair.stack,
                keys=f'{KEYS_OF_TWO}\nsite = "far"',
                devices=1,
                node_id=name,
                device_bytes=32 << 20,
            )
        )
    return found


def test_a_version_crosses_the_line_to_a_site_once(pair: Pair, far_site: list[Daemon]) -> None:
    readers = [daemon.client("reader") for daemon in far_site]
    with spoilt(pair.here, "") as (servicer, _, address), ThreadPoolExecutor(3) as pool:
        for version, most in ((1, STATE_BYTES), (2, STATE_BYTES // 50)):
            wanted, before = pair.publish(version), servicer.sent_bytes
            found = pool.map(lambda one: pair.fetch(one, version, address=address), readers)  # noqa: B023
            assert set(found) == {wanted}
            assert 0 < servicer.sent_bytes - before <= most
    assert {request.site for request in servicer.told} == {"far"}


def test_neighbours_go_on_at_their_block_when_the_first_reader_of_a_site_dies(
    pair: Pair, far_site: list[Daemon]
) -> None:
    readers = [daemon.client("reader") for daemon in far_site]
    wanted = pair.publish(1)
    with spoilt(pair.here, "waits") as (servicer, spoiling, address), ThreadPoolExecutor(3) as pool:
        first = pool.submit(pair.fetch, readers[0], 1, address=address)
        wait_until(lambda: servicer.told, what="the first reader asks")
        rest = [pool.submit(pair.fetch, reader, 1, address=address) for reader in readers[1:]]
        wait_until(lambda: len(servicer.told) == 3, what="its neighbours ask")
        wait_until(
            lambda: all(one.inventory().arrived_bytes >= BLOCK_BYTES for one in far_site),
            what="they have a block",
        )
        far_site[0].process.kill()
        spoiling.may_go_on.set()
        assert [one.result() for one in rest] == [wanted, wanted]
        readers[0].process.kill()
        with pytest.raises((PlexError, EOFError)):
            first.result()
    again = servicer.told[3:]
    assert min(request.offset for request in again) >= BLOCK_BYTES
    assert {request.without for request in again} == {servicer.told[0].reader}
    assert servicer.sent_bytes <= 2 * STATE_BYTES - BLOCK_BYTES, "one of them got the rest"

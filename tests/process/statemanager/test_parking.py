"""State that host memory cannot hold is parked on disk, in a real daemon with real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.dataplane import Message
from tests.rigs.direct_io import needs_direct_io
from tests.rigs.kept_daemon import KeptDaemon
from tests.rigs.state_daemon import DEADLINE_S, Client, Daemon
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, needs_direct_io]

BLOCK = 4 << 20
PIECE = {
    "kind": "param",
    "name": "w",
    "global_shape": [1 << 20],
    "start": [0],
    "size": [1 << 20],
    "dtype": "F32",
    "region": "params",
    "offset": 0,
    "stride": [1],
}


def keys(tmp_path: Path, *, host: int, disk: int) -> str:
    """Host memory and disk in blocks; each WPG has one block of state, as much as the device."""
    return (
        f"host_bytes = {host * BLOCK}\ndisk_bytes = {disk * BLOCK}\n"
        f'disk_dir = "{tmp_path / "disk"}"\nstaging_bytes = 1048576'
    )


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with one device of a block, and so many blocks of host memory and disk."""
    host, disk = getattr(request, "param", (2, 3))
    with ExitStack() as stack:
        yield Daemon(tmp_path, stack, keys=keys(tmp_path, host=host, disk=disk), devices=1)


def rank(daemon: Daemon, wpg_id: str, *, seed: int, number: int = 0) -> Client:
    client = daemon.client(wpg_id, rank=number, device_index=number)
    client("allocate", regions=[{"name": "params", "nbytes": BLOCK}])
    client("fill", name="params", seed=seed)
    client("index", pieces=[PIECE])
    client("set", scalars={"adam_step": seed}, applied_seq=seed)
    return client


def parked(daemon: Daemon, *wpg_ids: str) -> dict[str, tuple[Client, str]]:
    """Return WPGs that were there one after the other, each with its hash."""
    found = {}
    for seed, wpg_id in enumerate(wpg_ids):
        client = rank(daemon, wpg_id, seed=seed)
        found[wpg_id] = client, client("hash", name="params")
        assert daemon.move(wpg_id, "HOST").error.code == ""
    return found


def on_disk(daemon: Daemon) -> set[str]:
    return {wpg.wpg_id for wpg in daemon.inventory().wpgs if wpg.disk_bytes}


def below(kept: KeptDaemon) -> str:
    """Return the one that is on disk, once each has its place: places change in the background."""
    wait_until(lambda: len(on_disk(kept)) == 1, what="the other is in memory")
    return on_disk(kept).pop()


def used(daemon: Daemon) -> tuple[int, int]:
    """Return the bytes of host memory and of the disk."""
    found = daemon.inventory()
    return found.host_bytes_used, found.disk_bytes_used


def forget(daemon: Daemon, wpg_id: str) -> None:
    request = statemanager_pb2.ForgetRequest(wpg_id=wpg_id, fence=common_pb2.Fence())
    daemon.stub.Forget(request, timeout=DEADLINE_S)


def test_parked_state_makes_room_for_memory_that_a_rank_maps_for_life(daemon: Daemon) -> None:
    states = parked(daemon, "a", "b")
    assert on_disk(daemon) == set()
    client = daemon.client("lent")
    lent = {"name": "moments", "nbytes": BLOCK, "home": "host"}
    client("allocate", regions=[lent, {"name": "params", "nbytes": BLOCK, "home": "lent"}])
    assert used(daemon) == (2 * BLOCK, 2 * BLOCK)
    with pytest.raises(PlexError, match="host") as refused:
        daemon.client("more")("allocate", regions=[lent])
    assert refused.value.code is ErrorCode.NO_ROOM
    assert daemon.move("lent", "HOST").error.code == ""
    for wpg_id, (other, expected) in states.items():
        assert daemon.move(wpg_id, "DEVICE").error.code == ""
        assert other("hash", name="params") == expected
        assert daemon.move(wpg_id, "HOST").error.code == ""


def test_host_and_disk_together_are_full_before_anything_is_refused(
    daemon: Daemon, tmp_path: Path
) -> None:
    states = parked(daemon, "a", "b", "c", "d", "e")
    assert used(daemon) == (2 * BLOCK, 3 * BLOCK)
    with pytest.raises(PlexError, match="host and disk") as refused:
        rank(daemon, "f", seed=9)
    assert refused.value.code is ErrorCode.NO_ROOM
    for wpg_id in [*states, *states]:
        client, expected = states[wpg_id]
        assert daemon.move(wpg_id, "DEVICE").nbytes == BLOCK
        assert client("hash", name="params") == expected
        assert daemon.move(wpg_id, "HOST").nbytes == BLOCK
    assert os.listdir(tmp_path / "disk") == []
    for wpg_id in states:
        forget(daemon, wpg_id)
    assert used(daemon) == (0, 0)


@pytest.mark.parametrize("daemon", [(2, 4)], indirect=True)
def test_what_is_expected_next_is_in_memory_before_its_turn(daemon: Daemon) -> None:
    states = parked(daemon, "a", "b", "c", "d")
    client, expected = states["d"]
    request = statemanager_pb2.MoveRequest(
        wpg_id="a", to="RESIDENCY_DEVICE", fence=common_pb2.Fence(), next=["d", "b", "c"]
    )
    assert not daemon.stub.Move(request, timeout=DEADLINE_S).HasField("error")
    wait_until(lambda: on_disk(daemon) == {"b", "c"}, what="d is in memory, and the place of a")
    assert used(daemon) == (2 * BLOCK, 2 * BLOCK)
    assert daemon.move("a", "HOST").error.code == ""
    assert daemon.move("d", "DEVICE").error.code == ""
    assert client("hash", name="params") == expected
    assert daemon.inventory().risen_bytes > 0
    wait_until(lambda: not daemon.inventory().queued_bytes, what="nothing is to come back")


def test_whoever_was_parked_longest_ago_comes_next_when_nobody_says(daemon: Daemon) -> None:
    parked(daemon, "a", "b", "c")
    assert daemon.move("a", "DEVICE").error.code == ""
    wait_until(lambda: on_disk(daemon) == {"c"}, what="b is in memory")
    assert daemon.move("a", "HOST").error.code == ""
    assert daemon.move("b", "DEVICE").error.code == ""
    wait_until(lambda: on_disk(daemon) == {"a"}, what="c is in memory")


@pytest.mark.parametrize("daemon", [(3, 3)], indirect=True)
def test_versions_and_copies_take_host_memory_from_parked_state(daemon: Daemon) -> None:
    states = parked(daemon, "a", "b", "c")
    assert daemon.inventory().host_bytes_used == 3 * BLOCK
    assert daemon.publish("a", 1).error.code == ""
    assert len(on_disk(daemon)) == 1
    digests = {wpg_id: daemon.digests(wpg_id) for wpg_id in states}
    assert len({str(found) for found in digests.values()}) == 3
    for wpg_id, (client, expected) in states.items():
        assert daemon.move(wpg_id, "DEVICE").error.code == ""
        assert client("hash", name="params") == expected
        assert daemon.digests(wpg_id) == digests[wpg_id]
        assert daemon.move(wpg_id, "HOST").error.code == ""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptDaemon]:
    """A node with a block of host memory and three on disk, and a successor for each kill."""
    with ExitStack() as stack:
        where: dict[str, Any] = {"disk_bytes": 3 * BLOCK, "disk_dir": tmp_path / "disk"}
        yield KeptDaemon(tmp_path, stack, host_bytes=BLOCK, **where)


def check(kept: KeptDaemon, states: dict[str, tuple[Client, str]]) -> None:
    """Have each come to the device and leave it, as it was."""
    for wpg_id, (client, expected) in states.items():
        assert kept.move(wpg_id, "DEVICE").error.code == ""
        assert client("hash", name="params") == expected
        assert kept.move(wpg_id, "HOST").error.code == ""
    assert kept.lost == 0


def test_parked_state_on_disk_is_there_after_a_kill(kept: KeptDaemon) -> None:
    states = parked(kept, "a", "b", "c")
    for wpg_id in ("", *states):
        if wpg_id:
            assert kept.move(wpg_id, "DEVICE").error.code == ""
        kept.kill()
        wait_until(lambda: used(kept) == (BLOCK, 2 * BLOCK), what="one has its place in memory")
        for client, expected in [states[wpg_id]] if wpg_id else []:
            assert client("hash", name="params") == expected
            assert kept.move(wpg_id, "HOST").error.code == ""
    check(kept, states)


@pytest.mark.parametrize("blocks", [1, 3])
def test_what_ranks_hold_with_the_same_bytes_is_on_disk_once_and_outlives_a_kill(
    tmp_path: Path, blocks: int
) -> None:
    with ExitStack() as stack:
        where: dict[str, Any] = {"disk_bytes": 3 * BLOCK, "disk_dir": tmp_path / "disk"}
        kept = KeptDaemon(tmp_path, stack, host_bytes=blocks * BLOCK, **where)
        ranks = [rank(kept, "a", seed=7, number=number) for number in range(2)]
        expected = ranks[0]("hash", name="params")
        assert kept.move("a", "HOST").nbytes == BLOCK
        states = parked(kept, "b")
        booked = blocks * BLOCK, (3 - blocks) * BLOCK
        wait_until(lambda: used(kept) == booked, what="each has its place booked")
        # A version takes host memory from what is parked, and is read from it.
        if blocks > 1:
            assert kept.publish("a", 1).error.code == ""
        for wpg_id in ("a", "b"):
            kept.kill()
            assert kept.inventory().replica_bytes == BLOCK
            assert kept.move(wpg_id, "DEVICE").error.code == ""
            if wpg_id == "a":
                assert [one("hash", name="params") for one in ranks] == [expected] * 2
            assert kept.move(wpg_id, "HOST").error.code == ""
        check(kept, states)


@pytest.mark.parametrize("step", ["export", "park", "restored"])
def test_a_kill_inside_a_move_to_or_from_disk_leaves_the_state_whole(
    kept: KeptDaemon, step: str
) -> None:
    states = parked(kept, "a", "b")
    moved = below(kept)
    client = states[moved][0]
    if step != "restored":
        assert kept.move(moved, "DEVICE").error.code == ""
    client("set", kill_on=step, kill_pid=kept.pid)
    to = "DEVICE" if step == "restored" else "HOST"
    assert kept.move(moved, to).error.code == ""
    assert kept.restarts == 1
    assert kept.move(moved, "HOST").error.code == ""
    check(kept, states)


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_while_parked_state_changes_places_loses_nothing(
    kept: KeptDaemon, number: int
) -> None:
    """Killed at the record that seals the copy, or just as blocks are written or read."""
    states = parked(kept, "a", "b")
    count = 0

    def at(_: int, message: Message) -> None:
        nonlocal count
        count += message.header.get("key", [""])[0] == "host"
        if count == number:
            count += 1
            kept.kill(wait=False)

    sunk = below(kept)
    kept.vault.on_record = at
    assert kept.publish("a", 1).error.code in {"", "no_room"}
    assert kept.publish("b", 1).error.code in {"", "no_room"}
    kept.vault.on_record = lambda _count, _message: None
    check(kept, states)
    assert sunk in states
    assert kept.restarts == 1

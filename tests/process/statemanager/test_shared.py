"""Shared regions: in memory once, read-only for those who did not fill them, never in the way."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from plexsvc.errors import PlexError
from tests.rigs.direct_io import needs_direct_io
from tests.rigs.state_daemon import Client, Daemon
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20
MODEL = {"name": "model", "nbytes": MIB, "shared": "model.1"}


def reader(daemon: Daemon, wpg_id: str, *, own: int = MIB // 2, **identity: Any) -> Client:
    """Return a client that has the model and a region of its own, which is filled."""
    client = daemon.client(wpg_id, **identity)
    client("allocate", regions=[MODEL, {"name": "own", "nbytes": own}])
    client("fill", name="own", seed=len(wpg_id))
    return client


def pair(daemon: Daemon) -> tuple[Client, Client, str]:
    """Return a client that filled the model, one that reads it, and the model's hash."""
    first = reader(daemon, "a")
    filled = first("fill", name="model", seed=1)
    assert first("share", name="model"), "who filled it reads it only, too"
    return first, reader(daemon, "bb"), filled


def used(daemon: Daemon) -> tuple[int, int]:
    inventory = daemon.inventory()
    return inventory.devices[0].bytes_used, inventory.host_bytes_used


def test_a_region_is_in_memory_once_for_all_who_read_it(daemon: Daemon) -> None:
    first, second, filled = pair(daemon)
    assert (first("hash", name="model"), second("hash", name="model")) == (filled, filled)
    assert (first("read_only"), second("read_only")) == (["model"], ["model"])
    assert used(daemon) == (2 * MIB, 2 * MIB), "one model, and half a MiB for each"
    other = reader(daemon, "elsewhere", device_index=1)
    assert other("read_only") == [], "each device has its own"
    with pytest.raises(EOFError):
        second("fill", name="model", seed=2)
    assert first("hash", name="model") == filled


def test_it_stays_on_its_device_until_others_need_the_room(daemon: Daemon) -> None:
    first, second, filled = pair(daemon)
    own = first("hash", name="own")
    for wpg_id in ("a", "bb"):
        assert daemon.move(wpg_id, "HOST").nbytes == MIB // 2, "a switch moves what is its own"
    assert used(daemon)[0] == MIB
    assert daemon.move("bb", "DEVICE").nbytes == MIB // 2
    assert daemon.move("bb", "HOST").nbytes == MIB // 2
    big = daemon.client("big")
    big("allocate", regions=[{"name": "own", "nbytes": 4 * MIB}])
    big("fill", name="own", seed=3)
    assert used(daemon)[0] == 4 * MIB
    assert daemon.move("a", "DEVICE").error.code == "no_room"
    daemon.move("big", "HOST")
    assert daemon.move("a", "DEVICE").nbytes == MIB + MIB // 2
    assert daemon.move("bb", "DEVICE").nbytes == MIB // 2
    assert (first("hash", name="model"), second("hash", name="model")) == (filled, filled)
    assert first("hash", name="own") == own
    with pytest.raises(PlexError, match="free"):
        reader(daemon, "large", own=3 * MIB)
    assert used(daemon)[0] == 2 * MIB, "who was refused has taken nothing"


def test_a_reader_that_is_killed_leaves_it_to_the_others_and_the_last_one_frees_it(
    daemon: Daemon,
) -> None:
    first, second, filled = pair(daemon)
    first.process.kill()
    wait_until(lambda: used(daemon)[0] == MIB + MIB // 2, what="the first is gone")
    assert second("hash", name="model") == filled
    third = reader(daemon, "ccc")
    assert third("hash", name="model") == filled
    for client in (second, third):
        client.process.kill()
    wait_until(lambda: used(daemon) == (0, 0), what="nothing is left")
    assert reader(daemon, "dddd")("read_only") == []


@needs_direct_io
def test_its_copy_is_on_disk_where_host_memory_is_full(tmp_path: Path) -> None:
    full = f"host_bytes = {4 * MIB}\ndisk_bytes = {16 * MIB}\nstaging_bytes = {MIB}\n"
    with ExitStack() as stack:
        disk = f'disk_dir = "{tmp_path / "disk"}"'
        daemon = Daemon(tmp_path, stack, keys=full + disk, devices=1)
        big = daemon.client("big")
        big("allocate", regions=[{"name": "own", "nbytes": 4 * MIB}])
        kept = big("fill", name="own", seed=3)
        assert daemon.move("big", "HOST").error.code == ""
        first, second, filled = pair(daemon)
        for wpg_id, to in (("a", "HOST"), ("bb", "HOST"), ("big", "DEVICE"), ("big", "HOST")):
            assert daemon.move(wpg_id, to).error.code == ""
        assert daemon.move("bb", "DEVICE").nbytes == MIB + MIB // 2
        assert second("hash", name="model") == filled
        assert daemon.move("bb", "HOST").error.code == ""
        assert daemon.move("big", "DEVICE").error.code == ""
        assert big("hash", name="own") == kept
        for client in (first, second, big):
            client.process.kill()
        wait_until(lambda: used(daemon) == (0, 0), what="nothing is left")
        wait_until(lambda: daemon.inventory().disk_bytes_used == 0, what="nor on disk")


def test_while_one_fills_it_another_has_memory_of_its_own(daemon: Daemon) -> None:
    first, second = reader(daemon, "a"), reader(daemon, "bb")
    second("fill", name="model", seed=2)
    assert not second("share", name="model")
    filled = first("fill", name="model", seed=1)
    assert first("share", name="model")
    assert reader(daemon, "ccc")("hash", name="model") == filled
    second.process.kill()
    wait_until(lambda: used(daemon)[0] == 2 * MIB, what="the second is gone")
    assert first("hash", name="model") == filled

"""Context switches between real processes over a real daemon."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from tests.rigs.state_daemon import DEADLINE_S, Daemon
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20


def region(name: str, nbytes: int, *, droppable: bool = False) -> dict[str, object]:
    return {"name": name, "nbytes": nbytes, "droppable": droppable}


SUMS = region("sums", MIB, droppable=True)


def test_a_switch_keeps_every_byte_and_every_address(daemon: Daemon) -> None:
    a, b = daemon.client("a"), daemon.client("b")
    addresses = a("allocate", regions=[region("params", 2 * MIB + 100), region("moments", MIB)])
    written = {name: a("fill", name=name, seed=i) for i, name in enumerate(["params", "moments"])}
    a("set", scalars={"adam_step": 3, "lr": 0.1}, applied_seq=9)
    out = daemon.move("a", "HOST")
    assert (out.error.code, out.nbytes) == ("", 3 * MIB + 4096)
    b("allocate", regions=[region("params", 3 * MIB)])
    b("fill", name="params", seed=7)
    assert daemon.move("b", "HOST").error.code == ""
    assert daemon.move("a", "DEVICE").error.code == ""
    assert {name: a("hash", name=name) for name in written} == written
    assert a("get", field="restored_scalars") == {"adam_step": 3, "lr": 0.1}
    assert daemon.inventory().wpgs[0].applied_seq == 9
    assert a("addresses") == addresses


def test_two_states_that_do_not_fit_together_are_never_resident_together(daemon: Daemon) -> None:
    a, b = daemon.client("a"), daemon.client("b")
    a("allocate", regions=[region("params", 3 * MIB)])
    a("fill", name="params", seed=1)
    with pytest.raises(PlexError) as refused:
        b("allocate", regions=[region("params", 3 * MIB)])
    assert refused.value.code is ErrorCode.NO_ROOM
    assert refused.value.facts["need"] == str(3 * MIB)
    assert refused.value.facts["free"] == str(MIB)
    daemon.move("a", "HOST")
    b("allocate", regions=[region("params", 3 * MIB)])
    b("fill", name="params", seed=2)
    assert daemon.move("a", "DEVICE").error.code == "no_room"
    resident = [(a("rss_shmem"), b("rss_shmem"))]
    for off, on in [("b", "a"), ("a", "b"), ("b", "a")]:
        daemon.move(off, "HOST")
        daemon.move(on, "DEVICE")
        resident.append((a("rss_shmem"), b("rss_shmem")))
    assert all(sum(pair) <= 3 * MIB + 65536 for pair in resident), resident
    assert all(max(pair) >= 3 * MIB for pair in resident), resident
    device = daemon.inventory().devices[0]
    assert (device.bytes_used, device.bytes_peak) == (3 * MIB, 3 * MIB)


def test_clean_gradients_are_dropped_and_come_back_as_zeroes(daemon: Daemon) -> None:
    a, b = daemon.client("a"), daemon.client("b")
    a("allocate", regions=[region("params", MIB), region("grads", MIB, droppable=True)])
    zeroes = a("hash", name="grads")
    a("fill", name="grads", seed=1)
    assert daemon.move("a", "HOST").nbytes == MIB
    assert daemon.inventory().spared_bytes == MIB
    b("allocate", regions=[region("params", 4 * MIB)])
    b("fill", name="params", seed=2)
    daemon.move("b", "HOST")
    daemon.move("a", "DEVICE")
    assert a("hash", name="grads") == zeroes


def test_a_move_under_way_shows_how_far_it_is(daemon: Daemon) -> None:
    a = daemon.client("a")
    a("allocate", regions=[region("params", 4 * MIB)])
    daemon.move("a", "HOST")
    a.process.send_signal(signal.SIGSTOP)  # what is copied waits to be mapped
    try:
        under_way = daemon.stub.Move.future(
            statemanager_pb2.MoveRequest(wpg_id="a", to="RESIDENCY_DEVICE"), timeout=DEADLINE_S
        )
        wait_until(lambda: daemon.inventory().wpgs[0].moved_bytes == 4 * MIB, what="it is copied")
        assert daemon.inventory().wpgs[0].move_us > 0
    finally:
        a.process.send_signal(signal.SIGCONT)
    assert not under_way.result().HasField("error")
    after = daemon.inventory().wpgs[0]
    assert (after.move_us, after.moved_bytes) == (0, 0)


def test_dirty_gradients_survive_a_switch(daemon: Daemon) -> None:
    a = daemon.client("a")
    a("allocate", regions=[region("grads", MIB, droppable=True)])
    written = a("fill", name="grads", seed=1)
    a("set", dirty=["grads"])
    assert daemon.move("a", "HOST").nbytes == MIB
    daemon.move("a", "DEVICE")
    assert a("hash", name="grads") == written


def test_memory_of_a_tenant_that_left_reads_as_zeroes(daemon: Daemon) -> None:
    a = daemon.client("a")
    a("allocate", regions=[region("params", 4 * MIB)])
    zeroes = a("hash", name="params")
    a("fill", name="params", seed=1)
    a("close")
    b = daemon.client("b")
    b("allocate", regions=[region("params", 4 * MIB)])
    assert b("hash", name="params") == zeroes


def test_memory_of_a_parked_tenant_reads_as_zeroes_to_the_next(daemon: Daemon) -> None:
    a, b = daemon.client("a"), daemon.client("b")
    a("allocate", regions=[region("params", 4 * MIB)])
    zeroes = a("hash", name="params")
    a("fill", name="params", seed=1)
    daemon.move("a", "HOST")
    b("allocate", regions=[region("params", 4 * MIB)])
    assert b("hash", name="params") == zeroes


def test_a_rank_that_computes_while_parked_dies(daemon: Daemon) -> None:
    a = daemon.client("a")
    a("allocate", regions=[region("params", MIB)])
    daemon.move("a", "HOST")
    with pytest.raises(EOFError, match="-11"):
        a("touch", name="params")


def test_a_wpg_of_two_ranks_moves_whole_or_not_at_all(daemon: Daemon) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for i, rank in enumerate(ranks):
        rank("allocate", regions=[region("params", MIB)])
        rank("fill", name="params", seed=i)
    hashes = [rank("hash", name="params") for rank in ranks]
    ranks[1]("set", fail_on="export")
    failed = daemon.move("a", "HOST")
    assert failed.error.code == "internal"
    assert "told to fail in export" in failed.error.message
    assert [rank("hash", name="params") for rank in ranks] == hashes
    ranks[1]("set", fail_on="")
    assert daemon.move("a", "HOST").nbytes == 2 * MIB
    ranks[1]("set", fail_on="restored")
    assert daemon.move("a", "DEVICE").error.code == "internal"
    assert all(device.bytes_used == 0 for device in daemon.inventory().devices)
    ranks[1]("set", fail_on="")
    assert daemon.move("a", "DEVICE").error.code == ""
    assert [rank("hash", name="params") for rank in ranks] == hashes


def test_what_two_ranks_hold_with_the_same_bytes_is_parked_once(daemon: Daemon) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for i, rank in enumerate(ranks):
        rank("allocate", regions=[region("same", MIB), region("own", MIB), SUMS])
        rank("fill", name="same", seed=5)
        rank("fill", name="own", seed=i)
        rank("fill", name="sums", seed=6)
        rank("set", dirty=["sums"])
    names = ("same", "own", "sums")
    for changed, copied in [(None, 5), (None, 5), (0, 6), (1, 6), ("both", 5)]:
        for i, rank in enumerate(ranks):
            if changed in {i, "both"}:
                rank("fill", name="same", seed=7 + i if changed == i else 9)
        hashes = [[rank("hash", name=name) for name in names] for rank in ranks]
        assert hashes[0][2] == hashes[1][2], "gradients are each rank's own, equal or not"
        assert daemon.move("a", "HOST").nbytes == copied * MIB
        assert daemon.inventory().replica_bytes == (6 - copied) * MIB
        assert daemon.move("a", "DEVICE").nbytes == 6 * MIB
        assert [[rank("hash", name=name) for name in names] for rank in ranks] == hashes
    assert daemon.inventory().host_bytes_used == 6 * MIB, "room for when they differ"


@pytest.mark.slow
def test_a_thousand_switches_of_equal_and_of_different_ranks_leave_nothing_behind(
    daemon: Daemon,
) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for rank in ranks:
        rank("allocate", regions=[region("params", MIB)])
    held: list[tuple[int, int]] = []
    process = Path(f"/proc/{daemon.process.pid}")
    for turn in range(500):
        for rank in ranks:
            rank("fill", name="params", seed=turn % 4 and rank is ranks[0])
        assert daemon.move("a", "HOST").nbytes == (2 * MIB if turn % 4 else MIB)
        assert daemon.move("a", "DEVICE").nbytes == 2 * MIB
        if turn % 100 == 99:
            mappings = (process / "maps").read_text().count("plexsvc")
            held.append((len(list((process / "fd").iterdir())), mappings))
    assert held[1:] == held[:-1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_dies_takes_nothing_from_one_that_held_the_same(
    daemon: Daemon, number: int
) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for rank in ranks:
        rank("allocate", regions=[region("params", MIB)])
        rank("fill", name="params", seed=5)
    assert daemon.move("a", "HOST").nbytes == MIB
    ranks[number].process.kill()
    wait_until(
        lambda: daemon.inventory().host_bytes_used == MIB, what="what the dead rank had is freed"
    )
    assert daemon.move("a", "DEVICE").error.code == "worker_died"
    assert daemon.publish("a", 1).error.code == "worker_died"
    assert daemon.inventory().replica_bytes == 0
    ranks[1 - number].process.kill()
    wait_until(lambda: not daemon.inventory().host_bytes_used, what="nothing is left")


def test_a_killed_client_frees_its_memory_and_fails_its_wpg(daemon: Daemon) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for rank in ranks:
        rank("allocate", regions=[region("params", MIB)])
    ranks[1].process.kill()
    ranks[1].process.wait()
    reply = daemon.move("a", "HOST")
    assert reply.error.code == "worker_died"
    assert reply.error.facts["worker"] == "a/1"
    ranks[0].process.kill()
    ranks[0].process.wait()
    daemon.client("b")("allocate", regions=[region("params", 4 * MIB)])
    assert daemon.inventory().host_bytes_used == 4 * MIB


def test_a_rank_that_dies_inside_a_load_rolls_the_others_back(daemon: Daemon) -> None:
    ranks = [daemon.client("a", rank=i, device_index=i) for i in range(2)]
    for rank in ranks:
        rank("allocate", regions=[region("params", MIB)])
    daemon.move("a", "HOST")
    ranks[1]("set", fail_on="die")
    assert daemon.move("a", "DEVICE").error.code == "worker_died"
    assert ranks[0]("rss_shmem") < MIB
    assert all(device.bytes_used == 0 for device in daemon.inventory().devices)


def test_older_commands_and_ranks_are_refused(daemon: Daemon) -> None:
    a = daemon.client("a", incarnation=2)
    a("allocate", regions=[region("params", MIB)])
    fence: dict[str, Any] = {"scheduler_epoch": 5, "lease_no": 7, "incarnation": 2}
    assert daemon.move("a", "HOST", **fence).error.code == ""
    for older in ({"scheduler_epoch": 4}, {"lease_no": 6}, {"incarnation": 1}):
        assert daemon.move("a", "DEVICE", **{**fence, **older}).error.code == "stale_fence"
    with pytest.raises(PlexError, match="stale_fence"):
        daemon.client("a", rank=1, incarnation=1)
    new = daemon.client("a", incarnation=3)
    new("allocate", regions=[region("params", 4 * MIB)])
    with pytest.raises(PlexError, match="unavailable"):
        a("allocate", regions=[region("more", 1)])


def test_a_repeated_move_is_answered_as_before_and_moves_nothing(daemon: Daemon) -> None:
    a = daemon.client("a")
    a("allocate", regions=[region("params", MIB)])
    first = daemon.move("a", "HOST", move_id=b"m1")
    assert daemon.move("a", "HOST", move_id=b"m1") == first
    assert daemon.move("a", "HOST", move_id=b"m2").nbytes == 0


def test_garbage_on_the_data_socket_disturbs_nobody(daemon: Daemon) -> None:
    a = daemon.client("a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(daemon.ready["data_socket"])
        stranger.sendall(os.urandom(4096))
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    a("allocate", regions=[region("params", MIB)])
    assert daemon.move("a", "HOST").nbytes == MIB


def test_the_daemon_dies_with_its_parent_and_leaves_no_memory_behind(tmp_path: Path) -> None:
    config = tmp_path / "sm.toml"
    config.write_text(f'node_id = "n"\nruntime_dir = "{tmp_path}"\n')
    script = (
        "import subprocess, sys, os\n"
        "child = subprocess.Popen([sys.executable, '-m', 'plexsvc.statemanager.main',\n"
        "    '--config', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    shared_memory = set(Path("/dev/shm").iterdir())
    parent = subprocess.run(
        [sys.executable, "-c", script, str(config)], capture_output=True, text=True, check=False
    )
    child = int(parent.stdout)
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(child)
        assert select.select([descriptor], [], [], 20)[0], "the daemon outlived its parent"
        os.close(descriptor)
    assert not {p for p in Path("/dev/shm").iterdir() if "plexsvc" in p.name} - shared_memory

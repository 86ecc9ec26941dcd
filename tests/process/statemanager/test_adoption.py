"""State outlives its state manager: killed at any record, its successor goes on from there."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import PlexError
from tests.rigs.kept_daemon import KeptDaemon
from tests.rigs.state_daemon import DEADLINE_S, ROOT, Client
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process

KIB = 1 << 10
REGIONS = [
    {"name": "params", "nbytes": 512 * KIB},
    {"name": "grads", "nbytes": 256 * KIB, "droppable": True},
]
MODEL = {"name": "model", "nbytes": 256 * KIB, "shared": "model.1"}
PIECE = {
    "kind": "param",
    "name": "w",
    "global_shape": [64 * KIB],
    "start": [0],
    "size": [64 * KIB],
    "dtype": "F32",
    "region": "params",
    "offset": 0,
    "stride": [1],
}
FENCE = common_pb2.Fence(scheduler_epoch=1)


@pytest.fixture
def memory() -> str:
    """`cpu`: an arena. Tests give `cuda`, too: a GPU whose driver is a fake one in each process."""
    return "cpu"


@pytest.fixture
def kept(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptDaemon]:
    if memory == "cuda":
        put_fake_gpu(monkeypatch)
    with ExitStack() as stack:
        yield KeptDaemon(tmp_path, stack, memory=memory)


def put_fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT, ROOT / "tests/fakes/fake_gpu"):
        monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)


def rank(daemon: KeptDaemon, wpg_id: str, number: int = 0, *, seed: int = 1) -> Client:
    client = daemon.client(wpg_id, rank=number, device_index=number % 2)
    client("allocate", regions=REGIONS)
    client("fill", name="params", seed=seed)
    half = {**PIECE, "start": [32 * KIB * number], "size": [32 * KIB]}
    client("index", pieces=[half])
    client("set", scalars={"adam_step": 3}, applied_seq=7, dirty=["params"])
    return client


def readers(daemon: KeptDaemon, *wpg_ids: str) -> Client:
    """Return the first of some clients that share a model and have a region of their own."""
    clients = [daemon.client(wpg_id) for wpg_id in wpg_ids]
    for client in clients:
        client("allocate", regions=[MODEL, {"name": "own", "nbytes": 256 * KIB}])
        if client is clients[0]:
            client("fill", name="model", seed=9)
            client("share", name="model")
        client("fill", name="own", seed=4)
        client("set", dirty=["own"])
    return clients[0]


def forget(daemon: KeptDaemon, *wpg_ids: str, epoch: int = 0) -> None:
    fence = common_pb2.Fence(scheduler_epoch=epoch)
    for wpg_id in wpg_ids:
        daemon.stub.Forget(
            statemanager_pb2.ForgetRequest(wpg_id=wpg_id, fence=fence), timeout=DEADLINE_S
        )


@pytest.mark.parametrize(
    ("memory", "number"),
    [("cpu", signal.SIGKILL), ("cpu", signal.SIGTERM), ("cuda", signal.SIGKILL)],
)
def test_resident_and_parked_state_is_there_after_a_kill(
    kept: KeptDaemon, number: signal.Signals
) -> None:
    a, b = rank(kept, "a"), rank(kept, "b", seed=2)
    hashes = a("hash", name="params"), b("hash", name="params")
    addresses = a("addresses")
    assert kept.move("a", "HOST", lease_no=4).error.code == ""
    before = kept.inventory()
    digests = kept.digests("a"), kept.digests("b")
    kept.kill(number=number)
    after = kept.inventory()
    by_name = [sorted(found.wpgs, key=lambda wpg: wpg.wpg_id) for found in (before, after)]
    for wpg in (*by_name[0], *by_name[1]):
        wpg.ClearField("worked_bytes")  # counted by each state manager for itself
    assert by_name[0] == by_name[1]
    assert after.host_bytes_used == before.host_bytes_used
    assert [d.bytes_used for d in after.devices] == [d.bytes_used for d in before.devices]
    assert (kept.digests("a"), kept.digests("b")) == digests
    assert kept.move("a", "DEVICE", lease_no=5).error.code == ""
    assert (a("hash", name="params"), b("hash", name="params")) == hashes
    assert a("addresses") == addresses
    assert a("get", field="restored_scalars") == {"adam_step": 3}
    assert kept.move("a", "HOST", lease_no=4).error.code == "stale_fence"
    assert kept.lost == 0


@pytest.mark.parametrize("step", ["", "export", "park", "restored"])
def test_what_two_ranks_hold_with_the_same_bytes_is_there_for_both_after_a_kill(
    kept: KeptDaemon, step: str
) -> None:
    ranks = [rank(kept, "a", number) for number in range(2)]
    expected = ranks[0]("hash", name="params")
    for turn in range(2):
        assert kept.move("a", "HOST").error.code == ""
        assert kept.inventory().replica_bytes == 512 * KIB
        if turn == 0 and step in {"", "restored"}:
            ranks[1]("set", kill_on=step, kill_pid=kept.pid)
            if not step:
                kept.kill()
                assert kept.inventory().replica_bytes == 512 * KIB
        assert kept.move("a", "DEVICE").error.code == ""
        assert [one("hash", name="params") for one in ranks] == [expected] * 2
        if turn == 0 and step in {"export", "park"}:
            ranks[1]("set", kill_on=step, kill_pid=kept.pid)
    assert (kept.restarts, kept.lost) == (1, 0)


def test_a_state_manager_that_hangs_is_replaced_and_the_state_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        kept = KeptDaemon(tmp_path, stack, state_manager_silence_us=2_000_000)
        a = rank(kept, "a")
        expected, digests = a("hash", name="params"), kept.digests("a")
        wait_until(lambda: kept.vault.beats > 1, what="it shows that it gets on")
        os.kill(kept.pid, signal.SIGSTOP)
        assert kept.move("a", "HOST").error.code == ""
        assert (kept.restarts, kept.lost) == (1, 0)
        assert kept.digests("a") == digests
        assert kept.move("a", "DEVICE").error.code == ""
        assert a("hash", name="params") == expected


def test_a_successor_that_hangs_while_it_starts_is_replaced_and_the_state_stays(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        kept = KeptDaemon(tmp_path, stack, state_manager_silence_us=2_000_000)
        a, first = rank(kept, "a"), kept.pid
        expected, digests = a("hash", name="params"), kept.digests("a")
        kept.kill(wait=False)
        wait_until(lambda: kept.pid != first, what="a successor starts")
        os.kill(kept.pid, signal.SIGSTOP)
        assert kept.move("a", "HOST").error.code == ""
        assert (kept.sidecar.restarts, kept.lost) == (2, 0)
        assert kept.digests("a") == digests
        assert kept.move("a", "DEVICE").error.code == ""
        assert a("hash", name="params") == expected


@pytest.mark.parametrize(("memory", "ranks"), [("cpu", 1), ("cpu", 2), ("cuda", 2)])
@pytest.mark.parametrize("step", ["export", "park", "restored"])
def test_a_kill_inside_a_move_leaves_the_state_whole(
    kept: KeptDaemon, step: str, ranks: int
) -> None:
    clients = [rank(kept, "a", number, seed=number) for number in range(ranks)]
    hashes = [client("hash", name="params") for client in clients]
    digests = kept.digests("a")
    if step == "restored":
        assert kept.move("a", "HOST").error.code == ""
    clients[-1]("set", kill_on=step, kill_pid=kept.pid)
    to = "DEVICE" if step == "restored" else "HOST"
    assert kept.move("a", to).error.code == ""
    assert kept.restarts == 1
    assert kept.digests("a") == digests
    assert kept.move("a", "DEVICE").error.code == ""
    assert [client("hash", name="params") for client in clients] == hashes
    forget(kept, "a")
    wait_until(lambda: kept.vault.kinds == kept.idle, what="nothing is kept")


def test_a_move_that_was_done_is_answered_as_before(kept: KeptDaemon) -> None:
    rank(kept, "a")
    first = kept.move("a", "HOST", move_id=b"m1")
    kept.kill()
    again = kept.move("a", "HOST", move_id=b"m1")
    assert (again.nbytes, again.copy_us) == (first.nbytes, first.copy_us)
    assert again.nbytes == 512 * KIB


def test_versions_stay_open_and_are_freed_with_their_last_reader(kept: KeptDaemon) -> None:
    rank(kept, "a")
    reader = kept.client("reader")
    manifest = kept.published("a", 1)
    digest = reader("open_version", deployment_id="job/actor", version=1)
    kept.kill()
    assert kept.published("a", 1).block_checksums == manifest.block_checksums
    assert reader("hash_held") == digest
    release = statemanager_pb2.ReleaseVersionRequest(deployment_id="job/actor", version=1)
    kept.stub.ReleaseVersion(release, timeout=DEADLINE_S)
    used = kept.inventory().host_bytes_used
    kept.kill()
    assert kept.inventory().host_bytes_used == used, "mapped, so still counted"
    reader("drop_held")
    reader("create_staged", text="told with the next call", seal=True)
    freed = used - manifest.nbytes  # at once, or when the last client has said what it maps
    wait_until(lambda: kept.inventory().host_bytes_used == freed, what="the version is freed")
    wait_until(lambda: "version" not in kept.vault.kinds, what="and no longer kept")


def test_staged_results_survive_and_may_be_finished_later(kept: KeptDaemon) -> None:
    writer = rank(kept, "a")
    sealed = writer("create_staged", text="sealed", seal=True)
    writing = writer("create_staged", text="writing", seal=False)
    kept.kill()
    writer("seal", staging_id=writing)
    for staging_id, text in ((sealed, "sealed"), (writing, "writing")):
        assert writer("open_staged", staging_id=staging_id) == {
            "names": ["out"],
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "nbytes": len(text),
        }
    drop = statemanager_pb2.DropStagedRequest(job_id="job")
    kept.stub.DropStaged(drop, timeout=DEADLINE_S)
    assert kept.inventory().staging_bytes_used == 0
    wait_until(lambda: "staged" not in kept.vault.kinds, what="nothing is staged")


def test_a_rank_that_dies_meanwhile_is_freed_and_holds_nobody_up(kept: KeptDaemon) -> None:
    a, b = rank(kept, "a"), rank(kept, "b", seed=2)
    expected = b("hash", name="params")
    kept.kill(wait=False)
    a.process.kill()
    wait_until(lambda: kept.restarts == 1, what="a successor serves")
    forget(kept, "a")
    assert kept.move("b", "HOST").error.code == ""
    assert kept.move("b", "DEVICE").error.code == ""
    assert b("hash", name="params") == expected
    assert [wpg.wpg_id for wpg in kept.inventory().wpgs] == ["b"]


def test_a_reader_that_is_slow_to_return_holds_nobody_up(kept: KeptDaemon) -> None:
    rank(kept, "a")
    reader = kept.client("reader")
    nbytes = kept.published("a", 1).nbytes
    reader("open_version", deployment_id="job/actor", version=1)
    release = statemanager_pb2.ReleaseVersionRequest(deployment_id="job/actor", version=1)
    kept.stub.ReleaseVersion(release, timeout=DEADLINE_S)
    used = kept.inventory().host_bytes_used
    reader.process.send_signal(signal.SIGSTOP)
    kept.kill()
    assert kept.move("a", "HOST").error.code == ""
    assert kept.inventory().host_bytes_used == used, "what it holds is kept until it says"
    reader.process.send_signal(signal.SIGCONT)
    reader("create_staged", text="it has returned", seal=True)
    assert kept.inventory().host_bytes_used == used
    reader("drop_held")
    reader("create_staged", text="and tells what it dropped", seal=True)
    assert kept.inventory().host_bytes_used == used - nbytes


def test_a_reader_that_left_meanwhile_may_come_anew(kept: KeptDaemon) -> None:
    rank(kept, "a")
    reader = kept.client("reader")
    reader.process.send_signal(signal.SIGSTOP)
    kept.kill()
    again = kept.client("reader")
    assert again("create_staged", text="served", seal=True)
    reader.process.kill()


def test_a_successor_that_is_killed_while_it_starts_loses_nothing(kept: KeptDaemon) -> None:
    a = rank(kept, "a")
    expected = a("hash", name="params")
    before = kept.pid
    kept.kill(wait=False)
    wait_until(lambda: kept.pid != before, what="a successor starts")
    kept.kill()
    assert kept.move("a", "HOST").error.code == ""
    assert kept.move("a", "DEVICE").error.code == ""
    assert a("hash", name="params") == expected
    assert (kept.restarts, kept.lost) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nth", "memory"),
    [
        ("whole", 24, "cpu"),
        ("replicas", 24, "cpu"),
        ("shared", 28, "cpu"),
        ("whole", 24, "cuda"),
        ("shared", 28, "cuda"),
    ],
)
def test_whatever_record_it_dies_at_nothing_is_lost(
    tmp_path: Path,
    name: str,
    nth: int,
    memory: str,
    every: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill at records all along a program; the results are those without."""
    program = {
        "whole": partial(whole_program, seed=2),
        "replicas": partial(whole_program, seed=1),
        "shared": shared_program,
    }[name]
    if memory == "cuda":
        put_fake_gpu(monkeypatch)
    with ExitStack() as stack:
        daemon = KeptDaemon(tmp_path, stack, memory=memory)
        undisturbed = program(daemon)
        total = daemon.vault.count
    assert total > 20, "the program writes records"
    for number in range(3, total, every(nth)):
        with ExitStack() as stack:
            directory = tmp_path / str(number)
            directory.mkdir(mode=0o700)
            daemon = KeptDaemon(directory, stack, memory=memory)

            def at(
                count: int, message: object, daemon: KeptDaemon = daemon, number: int = number
            ) -> None:
                del message
                if count == number:
                    daemon.kill(wait=False)

            daemon.vault.on_record = at
            assert program(daemon) == undisturbed, number
            assert (daemon.restarts, daemon.lost) == (1, 0), number


def whole_program(daemon: KeptDaemon, *, seed: int) -> list[object]:
    """Use the data plane and return what can be seen; nothing is kept in the end.

    With a `seed` of 1 both ranks of a WPG have the same state.
    """
    seen: list[object] = []
    a0, a1, b = rank(daemon, "a", 0), rank(daemon, "a", 1, seed=seed), rank(daemon, "b", 0, seed=3)
    for lease_no, to in enumerate(["HOST", "DEVICE", "HOST"]):
        reply = daemon.move("a", to, lease_no=lease_no, scheduler_epoch=1)
        seen += [reply.error.code, reply.residency]
        seen.append(daemon.digests("a", fence=FENCE))
    manifest = daemon.published("a", 5, complete=True, fence=FENCE)
    seen += [manifest.block_checksums, manifest.scalars_json, manifest.applied_seq]
    opened = b("open_version", deployment_id="job/actor", version=5)
    staging_id = b("create_staged", text="result", seal=True)
    seen += [opened, b("open_staged", staging_id=staging_id), b("hash", name="params")]
    b("drop_held")
    release = statemanager_pb2.ReleaseVersionRequest(
        deployment_id="job/actor", version=5, fence=FENCE
    )
    daemon.stub.ReleaseVersion(release, timeout=DEADLINE_S)
    seen.append(daemon.move("a", "DEVICE", lease_no=9, scheduler_epoch=1).error.code)
    seen += [a0("hash", name="params"), a1("hash", name="params")]
    seen.append(daemon.move("a", "HOST", lease_no=1, scheduler_epoch=1).error.code)
    seen.append(daemon.move("a", "HOST", lease_no=10).error.code)
    daemon.stub.DropStaged(statemanager_pb2.DropStagedRequest(job_id="job"), timeout=DEADLINE_S)
    forget(daemon, "a", "b", epoch=1)
    wait_until(lambda: daemon.vault.kinds == daemon.idle, what="nothing is kept")
    inventory = daemon.inventory()
    seen += [inventory.host_bytes_used, inventory.staging_bytes_used]
    seen += [device.bytes_used for device in inventory.devices]
    return seen


def shared_program(daemon: KeptDaemon) -> list[object]:
    """Share a region, have it leave its device for others, and return; nothing is kept."""
    seen: list[object] = []
    first = readers(daemon, "a", "b")
    for lease_no, to in enumerate(["HOST", "DEVICE", "HOST"]):
        moves = [daemon.move(wpg_id, to, lease_no=lease_no) for wpg_id in ("a", "b")]
        seen += [move.error.code for move in moves]
    daemon.client("big")("allocate", regions=[{"name": "own", "nbytes": 4096 * KIB}])
    forget(daemon, "big")
    seen.append(daemon.move("a", "DEVICE", lease_no=3).error.code)
    seen += [first("hash", name="model"), first("hash", name="own"), first("read_only")]
    forget(daemon, "a", "b")
    wait_until(lambda: daemon.vault.kinds == daemon.idle, what="nothing is kept")
    inventory = daemon.inventory()
    return [*seen, inventory.host_bytes_used, *(d.bytes_used for d in inventory.devices)]


@pytest.mark.parametrize("kind", ["wpg", "host", "arena"])
def test_what_cannot_be_trusted_is_not_adopted(kept: KeptDaemon, kind: str) -> None:
    a = rank(kept, "a")
    kept.vault.spoil(kind)
    kept.kill()
    assert kept.lost == 1, "the ranks are ended"
    assert not kept.inventory().wpgs
    with pytest.raises(PlexError, match="none took over"):
        a("create_staged", text="late", seal=True)


def test_the_last_restart_starts_with_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        kept = KeptDaemon(tmp_path, stack, max_restarts=2)
        rank(kept, "a")
        kept.kill()
        assert (kept.lost, len(kept.inventory().wpgs)) == (0, 1)
        kept.kill()
        assert (kept.lost, len(kept.inventory().wpgs)) == (1, 0)

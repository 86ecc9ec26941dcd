"""Uploads of one bundle that overtake each other: the last counts, the others try again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, TenantId
from plexsvc.statelink import mapping
from plexsvc.statemanager import memfiles
from plexsvc.statemanager import staging as staging_module
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.shelves import StagingRoom
from plexsvc.statemanager.staging import Staging, Upload
from tests.rigs.memory_files import open_files
from tests.rigs.worker_batches import random_batch

BUNDLE = tensors.encode(random_batch(0))
TENANT = TenantId("tenant")
HEADER = service_pb2.StageHeader(
    operation_id=b"o" * 16,
    tenant=TENANT,
    job_id="job",
    tensors=BUNDLE.tensors,
    nbytes=len(BUNDLE.data),
)


@pytest.fixture
def staging() -> Staging:
    room = StagingRoom(staging_bytes=1 << 20, max_per_job=4)
    return Staging(room, lock=threading.Lock(), book=Book())


def begin(staging: Staging) -> Upload:
    upload = staging._begin(HEADER)
    assert upload is not None
    return upload


def test_an_upload_that_was_overtaken_may_be_sent_again(staging: Staging) -> None:
    first, second = begin(staging), begin(staging)
    whole = common_pb2.Chunk(offset=0, data=BUNDLE.data)
    with pytest.raises(PlexError, match="replaced by a newer one") as caught:
        first.write(whole)
    assert caught.value.retryable, "a final refusal would refuse the operation"
    first.abandon()
    second.write(whole)
    second.finish()
    assert staging._begin(HEADER) is None, "sending it again finds it there"
    assert staging.usage()[0] == HEADER.nbytes


def test_an_upload_whose_bundle_was_dropped_may_be_sent_again(staging: Staging) -> None:
    upload = begin(staging)
    upload.write(common_pb2.Chunk(offset=0, data=BUNDLE.data))
    staging.drop([HEADER.operation_id], job_id=JobId("job"))
    with pytest.raises(PlexError) as caught:
        upload.finish()
    assert caught.value.retryable
    assert staging.usage()[0] == 0


def take_upload(staging: Staging) -> None:
    """Take a whole upload as the servicer does."""
    with staging.uploading(HEADER) as upload:
        if upload is not None:
            upload.reserve()
            upload.write(common_pb2.Chunk(offset=0, data=BUNDLE.data))
            upload.finish()


def take_result(staging: Staging) -> None:
    """Make a result as a rank does: what it could not seal it gives back."""
    try:
        os.close(
            staging.create(
                b"r", BUNDLE.tensors, HEADER.nbytes, tenant=TENANT, job_id=JobId("job"), owner=1
            )
        )
        staging.seal(b"r", job_id=JobId("job"))
    except BaseException:
        staging.drop([b"r"], job_id=JobId("job"))
        raise


@pytest.mark.parametrize("take", [take_upload, take_result])
@pytest.mark.parametrize("error", [OSError, MemoryError, PlexError])
def test_a_fault_at_any_call_leaves_nothing_behind_and_it_may_come_again(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[Staging], None], error: type[Exception]
) -> None:
    fails_at = -1
    calls: list[str] = []

    def around(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 == fails_at:
                is_ours = error is PlexError
                raise PlexError(ErrorCode.UNAVAILABLE, "the vault") if is_ours else error("none")
            return call(*args, **named)

        return run

    def faulty() -> Staging:
        room, book = StagingRoom(staging_bytes=1 << 20, max_per_job=4), Book()
        for name in ("admit", "find", "get"):
            monkeypatch.setattr(room, name, around(name, getattr(room, name)))
        monkeypatch.setattr(book, "put", around("put", book.put))
        calls.clear()
        return Staging(room, lock=threading.Lock(), book=book)

    class FaultyFile(memfiles.MemoryFile):
        __init__ = around("__init__", memfiles.MemoryFile.__init__)
        map = around("map", memfiles.MemoryFile.map)
        duplicate = around("duplicate", memfiles.MemoryFile.duplicate)

    monkeypatch.setattr(staging_module, "MemoryFile", FaultyFile)
    for name in ("reserve", "write"):
        monkeypatch.setattr(staging_module, name, around(name, getattr(memfiles, name)))
    take(faulty())
    assert {"admit", "put", "__init__"} <= set(calls)
    for at in range(len(calls)):
        fails_at = at
        staging = faulty()
        with pytest.raises(error):
            take(staging)
        fails_at = -1
        assert staging.usage()[0] == 0
        take(staging)


def test_an_id_means_something_within_its_job_alone(staging: Staging) -> None:
    staging_id, ours, theirs = HEADER.operation_id, JobId("job"), JobId("thief")
    upload = begin(staging)
    upload.write(common_pb2.Chunk(offset=0, data=BUNDLE.data))
    upload.finish()
    for attempt in (
        lambda: staging.read(staging_id, 0, job_id=theirs),
        lambda: staging.open(staging_id, job_id=theirs),
        lambda: staging.seal(staging_id, job_id=theirs),
    ):
        with pytest.raises(PlexError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.NOT_FOUND
    assert staging.drop([staging_id], job_id=theirs) == staging.drop([], job_id=theirs) == 0
    foreign = service_pb2.StageHeader()
    foreign.CopyFrom(HEADER)
    foreign.job_id = theirs
    assert staging._begin(foreign) is not None, "it neither finds nor replaces another job's bundle"
    assert staging.read(staging_id, 0, job_id=ours) == BUNDLE.data
    with pytest.raises(PlexError, match="belongs to a job"):
        staging.read(staging_id, 0, job_id=JobId(""))


def test_uploads_wait_neither_for_one_another_nor_for_the_lock() -> None:
    lock = threading.Lock()
    staging = Staging(StagingRoom(staging_bytes=1 << 20, max_per_job=4), lock=lock, book=Book())
    upload = begin(staging)
    upload.reserve()
    with lock:
        upload.write(common_pb2.Chunk(offset=0, data=BUNDLE.data))
    upload.finish()
    assert (
        staging.read(HEADER.operation_id, 0, job_id=JobId("job"))
        == BUNDLE.data[: tensors.CHUNK_BYTES]
    )


def test_memory_that_the_machine_lacks_is_a_refusal_that_leaves_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(address: int, nbytes: int) -> None:
        raise OSError(errno.ENOMEM, "no memory", address, nbytes)

    monkeypatch.setattr(mapping, "populate", full)
    before = open_files()
    with pytest.raises(PlexError) as caught:
        staging.create(b"result", (), 8, tenant=TENANT, job_id=JobId("job"), owner=1)
    assert caught.value.code is ErrorCode.NO_ROOM
    upload = begin(staging)
    with pytest.raises(PlexError, match="no memory for"):
        upload.reserve()
    upload.abandon()
    del upload
    assert staging.usage()[0] == 0
    assert open_files() == before

"""Uploads of one bundle that overtake each other: the last counts, the others try again."""

from __future__ import annotations

import threading

import pytest

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc.errors import PlexError
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.shelves import StagingRoom
from plexsvc.statemanager.staging import Staging, Upload
from tests.rigs.worker_batches import random_batch

BUNDLE = tensors.encode(random_batch(0))
HEADER = service_pb2.StageHeader(
    operation_id=b"o" * 16, job_id="job", tensors=BUNDLE.tensors, nbytes=len(BUNDLE.data)
)


@pytest.fixture
def staging() -> Staging:
    room = StagingRoom(staging_bytes=1 << 20, max_per_job=4)
    return Staging(room, lock=threading.Lock(), book=Book())


def begin(staging: Staging) -> Upload:
    upload = staging.begin(HEADER)
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
    assert second.finish() == HEADER.nbytes
    assert staging.begin(HEADER) is None, "sending it again finds it there"
    assert staging.usage()[0] == HEADER.nbytes


def test_an_upload_whose_bundle_was_dropped_may_be_sent_again(staging: Staging) -> None:
    upload = begin(staging)
    upload.write(common_pb2.Chunk(offset=0, data=BUNDLE.data))
    staging.drop([HEADER.operation_id], job_id=None)
    with pytest.raises(PlexError) as caught:
        upload.finish()
    assert caught.value.retryable
    assert staging.usage()[0] == 0

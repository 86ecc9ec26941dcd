"""Files of token records: what a successor reads is what readers were given."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2
from plexsvc.rollout.recordfiles import RecordFile, StoredFrame, recover

OPERATION = operations_pb2.Operation(
    operation_id=bytes(range(16)), job_id="job", deployment_id="rollout", tenant="lab"
)
ENTRIES = [StoredFrame(b"first"), StoredFrame(b"second", b"spans"), StoredFrame(b"third")]


def written(directory: Path) -> Path:
    file = RecordFile(directory, OPERATION)
    for entry in ENTRIES:
        file.append(entry)
    (path,) = directory.iterdir()
    return path


def test_a_successor_reads_whose_record_it_is_and_every_frame(tmp_path: Path) -> None:
    written(tmp_path)
    assert list(recover(tmp_path)) == [(OPERATION, ENTRIES)]


def test_a_torn_end_is_cut_off_wherever_it_tears_and_writing_goes_on(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    for kept in range(1, len(whole)):
        path = tmp_path / OPERATION.operation_id.hex()
        path.write_bytes(whole[:kept])
        found = list(recover(tmp_path))
        if not found:
            assert not path.exists()
            continue
        ((_, entries),) = found
        assert entries == ENTRIES[: len(entries)]
        RecordFile(tmp_path, OPERATION).append(ENTRIES[len(entries)])
        assert list(recover(tmp_path)) == [(OPERATION, ENTRIES[: len(entries) + 1])]


def test_a_disk_that_fails_costs_the_successor_the_record_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RecordFile(tmp_path, OPERATION)
    file.append(ENTRIES[0])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        file.append(ENTRIES[1])
    file.append(ENTRIES[2])
    assert list(recover(tmp_path)) == []

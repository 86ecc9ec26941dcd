"""A checkpoint that is not byte for byte what was saved is refused, and the file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import checkpoints
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checkpoints import MODEL_FILE, BlockHasher, read_seal
from plexsvc.weights.owner import SEAL

BLOCK = 64
ROWS, COLUMNS = 64, 8


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of two tensors whose every row of eight floats lies in few blocks."""
    monkeypatch.setattr(checkpoints, "BLOCK_BYTES", BLOCK)
    values = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    save_file({"a": values, "b": values + 1}, tmp_path / MODEL_FILE)
    (tmp_path / "config.json").write_text("{}")
    checkpoints.seal(tmp_path, {})
    return tmp_path


def rows(name: str, first: int, count: int) -> TensorBox:
    box = Box((first, 0), (count, COLUMNS))
    return TensorBox(name=name, shape=(ROWS, COLUMNS), box=box)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def refusal_of(directory: Path, *wanted: TensorBox) -> str:
    with pytest.raises(PlexError) as caught:
        check(directory, *wanted)
    assert caught.value.code is ErrorCode.CHECKPOINT_DAMAGED
    assert "nothing was loaded" in caught.value.message
    return caught.value.message


def check(directory: Path, *wanted: TensorBox) -> None:
    found = read_seal(directory)
    assert found is not None
    for box in wanted:
        found.check_box(MODEL_FILE, box)


def start_of_tensors(directory: Path) -> int:
    return 8 + int.from_bytes((directory / MODEL_FILE).read_bytes()[:8], "little")


def test_a_checkpoint_that_is_what_was_saved_is_read(sealed: Path) -> None:
    check(sealed, rows("a", 0, ROWS), rows("b", 3, 1))


@pytest.mark.parametrize("row", [5, 17, ROWS - 1])
def test_a_flipped_byte_is_found_by_whoever_reads_it(sealed: Path, row: int) -> None:
    flip(sealed / MODEL_FILE, start_of_tensors(sealed) + row * COLUMNS * 4 + 5)
    message = refusal_of(sealed, rows("a", row, 1))
    assert str(sealed / MODEL_FILE) in message
    refusal_of(sealed, rows("a", 0, ROWS))
    check(sealed, rows("b", 10, 40))


def test_columns_of_a_tensor_are_checked_wherever_they_lie(sealed: Path) -> None:
    flip(sealed / MODEL_FILE, start_of_tensors(sealed) + 20 * COLUMNS * 4)
    columns = TensorBox(name="a", shape=(ROWS, COLUMNS), box=Box((0, 2), (ROWS, 1)))
    refusal_of(sealed, columns)


def test_a_flipped_byte_of_a_header_is_found_before_it_is_believed(sealed: Path) -> None:
    for offset in (3, 20):
        flip(sealed / MODEL_FILE, offset)
        assert MODEL_FILE in refusal_of(sealed, rows("a", 0, 1))
        flip(sealed / MODEL_FILE, offset)


@pytest.mark.parametrize("name", [MODEL_FILE, "config.json"])
def test_a_file_that_was_cut_or_lost_is_named(sealed: Path, name: str) -> None:
    data = (sealed / name).read_bytes()
    (sealed / name).write_bytes(data[:-1])
    assert str(sealed / name) in refusal_of(sealed)
    (sealed / name).unlink()
    assert str(sealed / name) in refusal_of(sealed)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"files": {"x": 3}}', '{"files": 1}'])
def test_a_seal_that_is_none_is_named(sealed: Path, text: str) -> None:
    (sealed / SEAL).write_text(text)
    assert str(sealed / SEAL) in refusal_of(sealed)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "plex_state.json"])
def test_a_checkpoint_whose_seal_did_not_come_along_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    assert f"missing beside {name}" in refusal_of(tmp_path)


def test_a_plain_model_has_no_seal(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_seal(tmp_path) is None


def test_a_whole_file_is_checked(sealed: Path) -> None:
    found = read_seal(sealed)
    assert found is not None
    (sealed / "config.json").write_text("[]")
    with pytest.raises(PlexError, match=r"config\.json"):
        found.check_file("config.json")


@given(st.lists(st.binary(max_size=200)))
def test_a_stream_has_the_blocks_of_its_bytes(parts: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "BLOCK_BYTES", BLOCK)
        hasher = BlockHasher()
        for part in parts:
            hasher.update(memoryview(part))
        whole = b"".join(parts)
        blocks = [whole[low : low + BLOCK] for low in range(0, len(whole), BLOCK)]
        found = hasher.seal()
    assert found.nbytes == len(whole)
    assert list(found.blocks) == [xxhash.xxh3_128_hexdigest(block) for block in blocks]

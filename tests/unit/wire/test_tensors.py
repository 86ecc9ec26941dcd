from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from plexclient.errors import PlexError
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2

Arrays = dict[str, npt.NDArray[np.generic]]
arrays = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.sampled_from(list(tensors.NAMES)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    ),
    max_size=4,
)


@given(arrays)
def test_a_bundle_comes_back_bit_for_bit_and_aligned(given_arrays: Arrays) -> None:
    bundle = tensors.encode(given_arrays)
    back = tensors.decode(bundle)
    assert list(back) == list(given_arrays)
    for name, array in given_arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()
    assert all(spec.offset % tensors.ALIGNMENT == 0 for spec in bundle.tensors)


@given(st.lists(st.binary(max_size=700_000), max_size=3), st.integers(0, 1_500_000))
def test_chunks_from_any_offset_join_to_the_rest(parts: list[bytes], start: int) -> None:
    whole = b"".join(parts)
    pieces = list(tensors.chunks([memoryview(part) for part in parts], start=start))
    assert b"".join(piece.data for piece in pieces) == whole[start:]
    assert all(piece.data and len(piece.data) <= tensors.CHUNK_BYTES for piece in pieces)
    assert all(whole[p.offset :].startswith(p.data) for p in pieces)


@pytest.mark.parametrize(
    "spec",
    [
        common_pb2.TensorSpec(name="x", dtype="F31", shape=[1], nbytes=4),
        common_pb2.TensorSpec(name="x", dtype="F32", shape=[2], nbytes=4),
        common_pb2.TensorSpec(name="x", dtype="F32", shape=[-1], nbytes=4),
        common_pb2.TensorSpec(name="x", dtype="F32", shape=[1], nbytes=4, offset=4),
        common_pb2.TensorSpec(name="x", dtype="F32", shape=[1], nbytes=4, offset=128),
        common_pb2.TensorSpec(name="x", dtype="F32", shape=[2**62, 4], nbytes=0),
    ],
)
def test_a_spec_that_contradicts_its_bytes_is_refused(spec: common_pb2.TensorSpec) -> None:
    with pytest.raises(PlexError, match="'x'"):
        tensors.views([spec], b"\0" * 128)


def test_a_dtype_the_wire_does_not_carry_is_refused() -> None:
    with pytest.raises(PlexError, match="complex"):
        tensors.encode({"z": np.zeros(2, dtype=np.complex64)})

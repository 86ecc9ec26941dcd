"""Lossless deltas between two versions of a block of weights: which elements changed, and to what.

The changed elements are told apart by the gaps between them, one byte each: a byte of 255 lengthens
the gap that follows by 255. Then come their new values. Both ends work on whole arrays.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from plexsvc.errors import bad_request

_COUNT: Final = struct.Struct("<I")
_WORD: Final = 8
"""Bytes that are compared at once; blocks begin and end at whole ones, but for the last."""
_LONG: Final = 255

WIDTHS: Final = (2, 4)
"""Bytes of an element: those of half and single precision."""


def encode(base: memoryview, new: memoryview, *, width: int, most: int) -> bytes | None:
    """Return what turns `base` into `new`, in elements of `width` bytes; None above `most` bytes.

    >>> base, new = memoryview(b"abcdefgh"), memoryview(b"abXdefgh")
    >>> delta = encode(base, new, width=2, most=99)
    >>> decode(memoryview(into := bytearray(8)), base=base, delta=delta, width=2); bytes(into)
    b'abXdefgh'
    """
    # Each element that changed takes its value and a byte of its gap at least.
    changed = _changed(base, new, width=width, most=most // (width + 1))
    if changed is None:
        return None
    # From -1 on, so that the first gap counts from element 0.
    gaps = np.diff(changed, prepend=np.int32(-1)) - 1
    coded = gaps.astype(np.uint8)
    far = np.flatnonzero(gaps >= _LONG)  # few where much has changed
    if far.size:
        longer = gaps[far] // _LONG
        coded[far] = gaps[far] - longer * _LONG
        coded = np.insert(coded, np.repeat(far, longer), np.uint8(_LONG))
    values = _elements(new, width).take(changed)
    return b"".join((_COUNT.pack(changed.size), coded.tobytes(), values.tobytes()))


def decode(into: memoryview, *, base: memoryview, delta: bytes | bytearray, width: int) -> None:
    """Write the block that `delta` makes of `base`.

    Raises:
        PlexError: `bad_request` for what is no delta of such a block.
    """
    count = _COUNT.unpack_from(delta)[0] if len(delta) >= _COUNT.size else -1
    low = len(delta) - count * width
    if count < 0 or width not in WIDTHS or low < _COUNT.size + count:
        raise bad_request(f"a delta of {len(delta)} bytes for {count} elements of {width} bytes")
    coded = np.frombuffer(delta, dtype=np.uint8, count=low - _COUNT.size, offset=_COUNT.size)
    ends = np.flatnonzero(coded != _LONG)
    if ends.size != count:
        raise bad_request(f"a delta of {count} elements has {ends.size} gaps")
    changed = np.cumsum(coded, dtype=np.int64)[ends] + np.arange(count)
    elements = _elements(into, width)
    if count and changed[-1] >= elements.size:
        raise bad_request(f"a delta of {elements.size} elements changes element {changed[-1]}")
    into[:] = base
    elements[changed] = np.frombuffer(delta, dtype=elements.dtype, offset=low)


def _changed(
    base: memoryview, new: memoryview, *, width: int, most: int
) -> npt.NDArray[np.int32] | None:
    """Return the places of the elements that differ, None for more than `most`."""
    whole = len(new) - len(new) % _WORD
    old_words, words = (np.frombuffer(part[:whole], dtype=np.uint64) for part in (base, new))
    is_other = old_words != words
    if np.count_nonzero(is_other) > most:
        return None
    places = np.flatnonzero(is_other).astype(np.int32)
    kind, shift = np.dtype(f"u{width}"), (_WORD // width).bit_length() - 1
    differs = old_words.take(places).view(kind) != words.take(places).view(kind)
    inside = np.flatnonzero(differs).astype(np.int32)
    changed = (places.take(inside >> shift) << shift) | (inside & ((1 << shift) - 1))
    if whole < len(new):
        rest = _elements(base[whole:], width) != _elements(new[whole:], width)
        last = np.flatnonzero(rest).astype(np.int32) + whole // width
        changed = np.concatenate([changed, last])
    return changed if changed.size <= most else None


def _elements(data: memoryview, width: int) -> npt.NDArray[np.uint16 | np.uint32]:
    return np.frombuffer(data, dtype=np.uint16 if width == WIDTHS[0] else np.uint32)

"""Frames come out as they went in, however the stream is cut; a garbled stream is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexsvc.errors import PlexError
from plexsvc.frames import framing

MESSAGES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=300)), max_size=6)


@given(messages=MESSAGES, data=st.data())
def test_frames_survive_any_cutting_of_the_stream(
    messages: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(framing.encode(number, body) for number, body in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = framing.FrameReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == messages


@given(number=st.integers(0, 2**64 - 1), body=st.binary(min_size=1, max_size=99), data=st.data())
def test_a_flipped_bit_never_becomes_a_message(
    number: int, body: bytes, data: st.DataObject
) -> None:
    frame = bytearray(framing.encode(number, body))
    at = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[at // 8] ^= 1 << at % 8
    assert _heard(bytes(frame)) in {"more is to come", "checksum_mismatch", "payload_too_large"}


def _heard(frame: bytes) -> str:
    try:
        found = framing.FrameReader().feed(frame)
    except PlexError as error:
        return error.code
    return "a message" if found else "more is to come"


def test_an_oversize_message_is_not_sent_and_an_oversize_frame_not_awaited() -> None:
    with pytest.raises(PlexError) as caught:
        framing.encode(1, bytes(MAX_MESSAGE_BYTES + 1))
    assert caught.value.code == "payload_too_large"
    with pytest.raises(PlexError) as caught:
        framing.FrameReader().feed(b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n")
    assert caught.value.code == "payload_too_large"

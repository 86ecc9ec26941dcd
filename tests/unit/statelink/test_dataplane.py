"""Messages and descriptors survive the socket; anything else is refused."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message


@given(
    st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False)),
    st.binary(max_size=1000),
)
def test_a_message_arrives_as_it_was_sent(header: dict[str, object], body: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        dataplane.send(left, Message(header=header, body=body))
        assert dataplane.receive(right) == Message(header=header, body=body)


def test_a_body_larger_than_any_socket_buffer_arrives() -> None:
    left, right = socket.socketpair()
    body = os.urandom(3 << 20)
    with left, right:
        sender = threading.Thread(target=dataplane.send, args=(left, Message(header={}, body=body)))
        sender.start()
        assert dataplane.receive(right).body == body
        sender.join()


def test_descriptors_arrive_open_and_belong_to_the_receiver() -> None:
    left, right = socket.socketpair()
    read_end, write_end = os.pipe()
    with left, right:
        dataplane.send(left, Message(header={}, fds=(write_end,)))
        os.close(write_end)
        received = dataplane.receive(right)
        os.write(received.fds[0], b"hello")
        dataplane.close_all(received.fds)
        assert os.read(read_end, 10) == b"hello"
        assert os.read(read_end, 10) == b""
    os.close(read_end)


def test_errors_travel_with_their_facts() -> None:
    left, right = socket.socketpair()
    with left, right:
        dataplane.send(left, dataplane.failure(PlexError(ErrorCode.NO_ROOM, "full", need=3)))
        with pytest.raises(PlexError) as caught:
            dataplane.raise_if_failure(dataplane.receive(right))
    assert (caught.value.code, caught.value.facts) == (ErrorCode.NO_ROOM, {"need": "3"})


def test_a_closed_connection_is_an_end_and_not_a_message() -> None:
    left, right = socket.socketpair()
    left.close()
    with right, pytest.raises(EOFError):
        dataplane.receive(right)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"PXD1" + b"\xff" * 8, b"PXD1\x02\0\0\0\0\0\0\0{]"]
)
def test_garbage_is_refused_and_not_believed(garbage: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(garbage)
        with pytest.raises(PlexError, match="not a data-plane message"):
            dataplane.receive(right)

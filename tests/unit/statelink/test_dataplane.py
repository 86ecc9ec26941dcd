"""Messages and descriptors survive the socket; anything else is refused."""

from __future__ import annotations

import array
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


def test_received_descriptors_are_not_passed_on_to_programs() -> None:
    left, right = socket.socketpair()
    with left, right:
        dataplane.send(left, Message(header={}, fds=(left.fileno(),)))
        received = dataplane.receive(right)
        assert not os.get_inheritable(received.fds[0])
        dataplane.close_all(received.fds)


def test_descriptors_of_a_message_that_is_cut_short_are_closed() -> None:
    left, right = socket.socketpair()
    read_end, write_end = os.pipe()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write_end]))]
    with right:
        left.sendmsg([b"PXD1"], rights)
        left.close()
        os.close(write_end)
        with pytest.raises(EOFError):
            dataplane.receive(right)
    assert os.read(read_end, 1) == b"", "nobody holds the pipe open"
    os.close(read_end)


def test_a_message_with_too_many_descriptors_is_refused_whole() -> None:
    left, right = socket.socketpair()
    read_end, write_end = os.pipe()
    with left, right:
        dataplane.send(left, Message(header={}, fds=(write_end,) * (dataplane.MAX_FDS + 10)))
        os.close(write_end)
        with pytest.raises(PlexError, match="descriptors were lost"):
            dataplane.receive(right)
    assert os.read(read_end, 1) == b"", "nobody holds the pipe open"
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

"""The rank's thread runs calls in order, hears sockets, and outlives their handlers' failures."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from plexsvc.worker.thread import RankThread


@pytest.fixture
def thread() -> Iterator[RankThread]:
    made = RankThread(name="rank-test")
    yield made
    made.shutdown()


def test_calls_run_in_order_on_the_one_thread(thread: RankThread) -> None:
    seen: list[tuple[int, str]] = []

    def note(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        return number

    futures = [thread.submit(note, number) for number in range(50)]
    assert [future.result(120) for future in futures] == list(range(50))
    assert seen == [(number, "rank-test") for number in range(50)]


def test_what_a_call_raises_reaches_who_waits_and_the_next_runs(thread: RankThread) -> None:
    with pytest.raises(ZeroDivisionError):
        thread.submit(divmod, 1, 0).result(120)
    assert thread.submit(divmod, 7, 2).result(120) == (3, 1)


def test_a_cancelled_call_does_not_run(thread: RankThread) -> None:
    gate = threading.Event()
    held = thread.submit(gate.wait, 120)
    waiting = thread.submit(divmod, 1, 0)
    assert waiting.cancel()
    gate.set()
    assert held.result(120)
    assert thread.submit(len, "ab").result(120) == 2


def test_a_failing_socket_handler_costs_nobody_else(thread: RankThread) -> None:
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []
    done = threading.Event()

    def on_readable() -> None:
        heard.append(theirs.recv(1))
        if len(heard) == 1:
            raise RuntimeError("a bug of a handler")
        done.set()

    with ours, theirs:
        thread.submit(thread.listen, theirs, on_readable).result(120)
        ours.send(b"a")
        ours.send(b"b")
        assert done.wait(120)
        thread.submit(partial(thread.forget, theirs)).result(120)
    assert heard == [b"a", b"b"]

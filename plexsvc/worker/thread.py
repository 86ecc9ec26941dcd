"""The one thread of a rank that owns torch: it runs what it is given and hears sockets itself.

Theory of operation. Handing an operation from the thread that received it to the one that runs it,
and its answer back, costs two wake-ups and as many turns of the interpreter's lock, on a processor
that dozens of ranks share. So the thread that runs operations also waits for them: calls that other
threads submit reach it through a queue and a byte in a socket, and sockets registered with it are
read here. It does one thing at a time, in the order it finds them.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from plexsvc.log import Log

log = Log(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_WAKE_BYTES = 4096


class RankThread(Executor):
    """A pool of one daemon thread that also serves sockets."""

    def __init__(self, *, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._is_open = True
        self._selector.register(self._woken, selectors.EVENT_READ, self._run_calls)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called on the thread after what was submitted before."""
        future: Future[T] = Future()
        self._calls.put(partial(_settle, future, partial(fn, *args, **kwargs)))
        self._waker.send(b"\0")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after what was submitted before; what it listens to is closed."""
        del cancel_futures
        self.submit(self._close)
        if wait:
            self._thread.join()

    def listen(self, sock: socket.socket, on_readable: Callable[[], None]) -> None:
        """Have `on_readable` called whenever `sock` can be read. On the thread."""
        self._selector.register(sock, selectors.EVENT_READ, on_readable)

    def forget(self, sock: socket.socket) -> None:
        """Listen to `sock` no more. On the thread."""
        self._selector.unregister(sock)

    def _run(self) -> None:
        with self._selector, self._waker:
            while self._is_open:
                for key, _ in self._selector.select():
                    try:
                        key.data()
                    except Exception:  # noqa: BLE001 - one line's trouble must not end the thread
                        log.error("a socket's handler failed")
            for key in list(self._selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket), key
                key.fileobj.close()

    def _run_calls(self) -> None:
        self._woken.recv(_WAKE_BYTES)  # one wake-up may stand for several calls
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            call()

    def _close(self) -> None:
        self._is_open = False


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - its waiter raises it
        future.set_exception(error)
    else:
        future.set_result(result)

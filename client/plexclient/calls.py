"""The three forms of a call: blocking, a future, and awaitable; one implementation behind them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from plexclient.background import Background

P = ParamSpec("P")
R = TypeVar("R")


class HasBackground(Protocol):
    """What owns callable operations."""

    @property
    def background(self) -> Background:
        """The loop its calls run on."""


class Cancellable(Future[R]):
    """The future of an operation that the service ends when asked.

    `cancel` returns at once; then the future raises `cancelled`, unless the operation was over
    before. An operation that waits has changed nothing then. A generate that runs is ended, and
    its instances are free; so is a save that is being written. Any other operation that runs ends
    by itself.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__()
        self._cancel = cancel

    def cancel(self) -> bool:
        """Ask for the end of the operation; return whether it may still be ended."""
        if self.done():
            return False
        self._cancel()
        return True


async def unowned(future: Future[R]) -> R:
    """Return the result of a future that goes on when its awaiter is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(future))


S = TypeVar("S", bound=HasBackground)
V = TypeVar("V")


class Call(Generic[P, R]):
    """`call(...)` blocks; `call.submit(...)` returns a future; `await call.aio(...)` awaits.

    An operation takes its place in the deployment's order when any of the three is called, before
    it returns. Giving up on an await does not take the operation back; `cancel()` of a future does:
    see `Cancellable`.
    """

    def __init__(self, start: Callable[P, Future[R]], *, background: Background) -> None:
        self._start = start
        self._background = background
        self.__doc__ = start.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result; blocks until it is there."""
        self._background.check_may_block()  # before it starts: a refused call has done nothing
        return self._start(*args, **kwargs).result()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Return a future of the result at once."""
        return self._start(*args, **kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return a coroutine of the result, for the caller's own event loop."""
        return unowned(self._start(*args, **kwargs))


class call(Generic[S, P, R]):  # noqa: N801 - used as a decorator
    """Turns a method that returns a future into a `Call` with three forms."""

    def __init__(self, method: Callable[Concatenate[S, P], Future[R]]) -> None:
        self._method = self.__wrapped__ = method  # documentation reads the signature there
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type[S]) -> call[S, P, R]: ...
    @overload
    def __get__(self, instance: S, owner: type[S] | None = None) -> Call[P, R]: ...
    def __get__(
        self, instance: S | None, owner: type[S] | None = None
    ) -> Call[P, R] | call[S, P, R]:
        if instance is None:
            return self
        bound: Callable[P, Future[R]] = self._method.__get__(instance, owner)
        return Call(bound, background=instance.background)


def taking(
    make: Callable[P, V],
) -> Callable[[Callable[[S, V], Future[R]]], Callable[Concatenate[S, P], Future[R]]]:
    """Have a method that takes one value take what `make` makes it of."""

    def wrapped(method: Callable[[S, V], Future[R]]) -> Callable[Concatenate[S, P], Future[R]]:
        def call_with(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
            return method(self, make(*args, **kwargs))

        own = inspect.signature(method)
        taken = [next(iter(own.parameters.values())), *inspect.signature(make).parameters.values()]
        call_with.__signature__ = own.replace(parameters=taken)  # type: ignore[attr-defined]
        call_with.__doc__ = method.__doc__
        return call_with

    return wrapped

"""The client's own loop: what is read from elsewhere ends there, and nobody blocks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import plexclient as plex
from plexclient.background import Background
from plexclient.errors import PlexError
from tests.fakes.fake_router import TOKEN, FakeRouter


class FakeSource:
    """Yields one item and then none; tells how it ended."""

    def __init__(self) -> None:
        self.waits, self.ended = threading.Event(), threading.Event()

    async def items(self) -> AsyncGenerator[int]:
        try:
            yield 1
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


async def test_a_reader_that_is_cancelled_while_it_waits_ends_what_it_reads(
    background: Background,
) -> None:
    source = FakeSource()

    async def read() -> list[int]:
        return [item async for item in background.pull_aio(source.items())]

    reading = asyncio.ensure_future(read())  # noqa: TID251 - cancelled from outside
    assert await asyncio.to_thread(source.waits.wait, 120)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.to_thread(source.ended.wait, 120)


def test_a_reader_that_leaves_between_two_items_ends_what_it_reads(background: Background) -> None:
    source = FakeSource()
    for item in background.pull(source.items()):
        assert item == 1
        break
    assert source.ended.wait(120)


def test_a_connection_is_not_closed_from_a_callback(router: FakeRouter) -> None:
    cluster = plex.connect(router.address, token=TOKEN)
    with cluster.job("test") as job:
        actor = job.deploy("actor", model="/model", backend="noop")
        refusal: Future[BaseException | None] = Future()
        may_end = threading.Event()

        def closes(_: Future[bool]) -> None:
            try:
                cluster.close()
            except PlexError as error:
                refusal.set_result(error)

        ends = actor.background.start(lambda: asyncio.to_thread(may_end.wait))
        ends.add_done_callback(closes)  # before it is done: else it were called here
        may_end.set()
        assert "bad_request: a blocking call" in str(refusal.result(120))
        actor.noop()  # it is still open
    cluster.close()


def test_a_connection_that_is_refused_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(PlexError, match="cannot be read"):
        plex.connect("127.0.0.1:1", token=TOKEN, ca=str(tmp_path / "none.pem"))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RuntimeError("Event loop is closed"), False),
        (BlockingIOError(), False),
        (RuntimeError("a bug"), True),
    ],
)
def test_what_grpcs_poller_says_of_other_connections_is_not_printed(
    background: Background,
    caplog: pytest.LogCaptureFixture,
    *,
    error: Exception,
    is_told: bool,
) -> None:
    async def fail() -> None:
        said = "Exception in callback PollerCompletionQueue._handle_events()"
        asyncio.get_running_loop().call_exception_handler({"message": said, "exception": error})

    background.run(fail)
    assert bool(caplog.records) == is_told

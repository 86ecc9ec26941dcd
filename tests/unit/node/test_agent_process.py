"""An agent's process is started, read and reaped on uvloop as on asyncio's own loop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.agent_process import AgentProcess

Run = Callable[[Coroutine[Any, Any, None]], None]
PROGRAM = "import sys, time; print('log', file=sys.stderr); print('hello', flush=True); {}"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    loop: Run = request.param
    return loop


def started(tmp_path: Path, then: str) -> AgentProcess:
    argv = (sys.executable, "-c", PROGRAM.format(then))
    return AgentProcess(argv, log_path=tmp_path / "log")


def test_its_first_line_its_log_and_its_exit_code_are_told(run: Run, tmp_path: Path) -> None:
    async def drill() -> None:
        process = started(tmp_path, "sys.exit(3)")
        assert await process.read_line() == b"hello\n"
        assert await process.wait() == await process.wait() == 3
        await process.end(grace_s=0)  # it has ended: nothing happens

    run(drill())
    assert (tmp_path / "log").read_text() == "log\n"


def test_a_killed_process_ends_with_its_signal(run: Run, tmp_path: Path) -> None:
    async def drill() -> None:
        process = started(tmp_path, "time.sleep(60)")
        await process.read_line()
        process.kill()
        async with asyncio.timeout(120):
            assert await process.wait() == -signal.SIGKILL

    run(drill())


def test_output_that_ends_without_a_line_is_returned_as_it_is(run: Run, tmp_path: Path) -> None:
    async def drill() -> None:
        process = AgentProcess((sys.executable, "-c", ""), log_path=tmp_path / "log")
        assert await process.read_line() == b""
        assert await process.wait() == 0

    run(drill())


def test_what_is_no_announcement_is_told_with_the_end_of_its_log(run: Run, tmp_path: Path) -> None:
    async def drill() -> None:
        process = started(tmp_path, "time.sleep(60)")
        with pytest.raises(PlexError) as caught:
            await process.announcement("the agent of n1", timeout_s=20)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert "the agent of n1 did not start: it said b'hello\\n'" in caught.value.message
        assert caught.value.message.endswith("ends: log")
        assert await process.wait() < 0

    run(drill())

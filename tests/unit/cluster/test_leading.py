"""Who leads a state directory: a standby waits, and ends a leader that stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.cluster import leading
from plexsvc.cluster.places import held, holder
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.store.leadership import Leadership

HOLD = """
import pathlib, sys, time
from plexsvc.cluster.places import held
with held(pathlib.Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(600)
"""


async def test_one_that_does_not_wait_is_refused_and_one_that_does_is_next(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            with held(tmp_path):
                with pytest.raises(PlexError) as refused:
                    await leading.hold(tmp_path, stack, waits=False, clock=SystemClock())
                assert refused.value.code == ErrorCode.UNAVAILABLE
                waiting = leading.hold(tmp_path, stack, waits=True, clock=SystemClock())
                waits = tasks.create_task(waiting)
                await asyncio.sleep(0)
                assert not waits.done()
        assert holder(tmp_path) is not None
    assert holder(tmp_path) is None


async def test_a_database_file_has_one_service_whatever_their_directories(tmp_path: Path) -> None:
    database, other = tmp_path / "plex.db", tmp_path / "other"
    other.mkdir()
    async with AsyncExitStack() as stack:
        hold = partial(leading.hold, waits=False, clock=SystemClock(), database=database)
        await hold(tmp_path, stack)
        with pytest.raises(PlexError, match=f"uses the database {database} .pid {os.getpid()}"):
            await hold(other, stack)
    async with AsyncExitStack() as stack:
        await hold(other, stack)


def test_a_leader_that_stands_still_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as former:
        assert former.stdout is not None
        former.stdout.readline()
        former.send_signal(signal.SIGSTOP)
        asyncio.run(take_from_former(tmp_path))
        assert former.wait() == -signal.SIGKILL


async def take_from_former(state_dir: Path) -> None:
    async with AsyncExitStack() as stack:
        await leading.take_from_former(state_dir, stack, clock=SystemClock())


async def test_a_database_that_does_not_answer_ends_one_that_does_not_wait() -> None:
    claim = Leadership("postgresql+psycopg://plex@/x?host=/nowhere", holder="it")
    with pytest.raises(PlexError, match="does not answer"):
        await leading.lead(claim, waits=False, clock=SystemClock())
    claim.close(ends_all=True)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_one_that_died_with_its_database_is_waited_for(
    comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Leadership("postgresql+psycopg://plex@/x?host=/nowhere", holder="it")
    answers = [("first", True), ("first", True), ("first" if comes_back else None, False)]

    def try_take() -> str | None:
        leader, claim.is_awaited = answers.pop(0)
        return leader

    monkeypatch.setattr(claim, "try_take", try_take)
    if comes_back:
        with pytest.raises(PlexError, match="first leads the cluster"):
            await leading.lead(claim, waits=False, clock=SystemClock())
    else:
        await leading.lead(claim, waits=False, clock=SystemClock())
    assert not answers

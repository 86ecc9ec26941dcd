"""An agent's record finds the process that it is about, and no other of its number."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plexsvc.node import found


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as running:
        yield running
        running.kill()


def test_a_record_is_found_while_its_process_runs(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    directory = tmp_path / "nodes" / "n" / "logs"
    directory.mkdir(parents=True)
    assert found.find_all(tmp_path) == []
    found.record(directory, node_id="n", pid=process.pid, address="unix:/a")
    (agent,) = found.find_all(tmp_path)
    assert (agent.node_id, agent.pid, agent.address) == ("n", process.pid, "unix:/a")
    found.end(agent)
    process.wait()
    assert found.find_all(tmp_path) == []
    found.end(agent)


def test_a_number_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    found.record(tmp_path, node_id="n", pid=os.getpid(), address="unix:/a")
    path = tmp_path / found.RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": "1"}))
    assert found.find(tmp_path) is None
    path.write_text("{")
    assert found.find(tmp_path) is None


async def test_a_found_process_is_waited_for_and_ended(process: subprocess.Popen[bytes]) -> None:
    watched = found.FoundProcess(process.pid)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(watched.wait())
        await watched.end(grace_s=10)
    assert waiting.result() == -signal.SIGKILL
    watched.kill()
    assert process.wait() == -signal.SIGTERM

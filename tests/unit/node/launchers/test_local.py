"""An agent that dies has successors, so many within a window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.agent_process import AgentProcess
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.found import FoundAgent
from plexsvc.node.launchers.local import LocalLauncher
from tests.fakes.fake_clock import FakeClock


@dataclass
class FakeProcess:
    """Dies so long after it is waited for."""

    clock: FakeClock
    pause_us: int

    async def wait(self) -> int:
        await self.clock.passes(self.pause_us)
        return -9

    async def end(self, *, grace_s: float) -> None:
        assert grace_s > 0


@pytest.mark.parametrize(("pause_us", "most"), [(101, 3), (60, 2)])
async def test_an_agent_is_started_again_so_often_within_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_us: int, most: int
) -> None:
    config = AgentConfig(
        node_id="n",
        devices=(DeviceConfig(kind="train", bytes_total=1),),
        runtime_dir=tmp_path,
        keys_file=tmp_path,
        max_restarts=1,
        restart_window_us=100,
    )
    clock = FakeClock()
    launcher = LocalLauncher((config,), clock=clock)
    replacements: list[bool] = []

    async def spawn(given: AgentConfig) -> None:
        if len(replacements) == 3:
            raise PlexError(ErrorCode.UNAVAILABLE, "enough")
        replacements.append(given.is_replacement)
        process = cast("AgentProcess", FakeProcess(clock, pause_us))
        launcher._note(FoundAgent(node_id="n", pid=1, started="1", address="unix:/a"), process)

    monkeypatch.setattr(launcher, "_spawn", spawn)
    await spawn(config)
    await launcher._keep(config)
    assert replacements == [False, True, True][:most]

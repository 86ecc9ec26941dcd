"""The owner's switches: a socket of the owner's own, one answer a connection."""

from __future__ import annotations

import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.serving.control import ask, check_free, switches


async def reclaim() -> Mapping[str, Any]:
    return {"took_us": 12}


async def test_a_switch_is_carried_out_and_answered(tmp_path: Path) -> None:
    place = tmp_path / "serving" / "chat.sock"
    async with switches(place, {"reclaim": reclaim}):
        assert await ask(place, "reclaim") == {"took_us": 12}
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert not place.exists()


async def test_an_unknown_switch_is_refused_with_those_there_are(tmp_path: Path) -> None:
    place = tmp_path / "chat.sock"
    async with switches(place, {"reclaim": reclaim}):
        with pytest.raises(PlexError, match="it has reclaim"):
            await ask(place, "explode")


async def test_without_an_engine_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="no engine serves at") as refused:
        await ask(tmp_path / "chat.sock", "report")
    assert refused.value.code is ErrorCode.NOT_FOUND


async def test_a_name_that_is_served_keeps_its_switches_and_another_is_refused(
    tmp_path: Path,
) -> None:
    place = tmp_path / "chat.sock"
    async with switches(place, {"reclaim": reclaim}):
        with pytest.raises(PlexError, match="chat is served already"):
            check_free(place)
        with pytest.raises(PlexError, match="chat is served already"):
            async with switches(place, {}):
                pass
        assert await ask(place, "reclaim") == {"took_us": 12}


async def test_a_socket_that_a_killed_engine_left_is_taken_over(tmp_path: Path) -> None:
    place = tmp_path / "chat.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place))
    async with switches(place, {"reclaim": reclaim}):
        assert await ask(place, "reclaim") == {"took_us": 12}


async def test_a_name_too_long_for_a_socket_is_refused_with_the_bytes_there_may_be(
    tmp_path: Path,
) -> None:
    place = tmp_path / f"{'n' * 100}.sock"
    with pytest.raises(PlexError, match="107 at most") as refused:
        check_free(place)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(PlexError, match="no engine serves at"):
        await ask(place, "report")

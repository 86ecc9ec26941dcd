"""What operators closed stays closed through a restart, and a full disk changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.closed import keep_closed, read_closed
from plexsvc.rollout.core.instances import SPOT
from plexsvc.rollout.core.pool import SlotCame
from plexsvc.rollout.providers.lent import LentEngines
from plexsvc.rollout.spot import PooledInstances


def pooled(path: Path) -> PooledInstances:
    hosts = LentEngines(SystemClock())
    made = PooledInstances(
        SPOT, hosts, hosts, clock=SystemClock(), fleet_of=lambda _: None, closed_file=path
    )
    for name in ("n:0", "n:1"):
        made.post(SlotCame(slot_id=name))
    return made


def phases(made: PooledInstances) -> dict[str, str]:
    return {view.device: view.phase for view in made.without_instance()}


def test_a_successor_knows_what_was_closed_and_what_was_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "closed.json"
    first = pooled(path)
    assert phases(first) == {"n:0": "free", "n:1": "free"}
    first.close("n:0")
    first.close("n:1")
    assert phases(pooled(path)) == {"n:0": "closed", "n:1": "closed"}
    first.open("n:1")
    assert phases(pooled(path)) == phases(first) == {"n:0": "closed", "n:1": "free"}


def test_what_cannot_be_kept_is_refused_and_closes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "closed.json"
    made = pooled(path)
    with pytest.raises(PlexError, match="nothing was changed") as refused:
        made.close("n:0")
    assert refused.value.code is ErrorCode.DISK_FULL
    assert phases(made) == {"n:0": "free", "n:1": "free"}
    path.parent.mkdir()
    made.close("n:0")
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(PlexError, match="nothing was changed"):
        made.open("n:0")
    assert phases(made) == {"n:0": "closed", "n:1": "free"}


@pytest.mark.parametrize("told", ["", "{}", "[1]", '{"n:0": 1}', "["])
def test_a_file_of_another_hand_is_refused_by_name(tmp_path: Path, told: str) -> None:
    path = tmp_path / "closed.json"
    path.write_text(told)
    with pytest.raises(PlexError, match=r"closed\.json.* cannot be read"):
        read_closed(path)


def test_the_file_is_a_list_of_names(tmp_path: Path) -> None:
    keep_closed(tmp_path / "closed.json", {"n:1", "n:0"})
    assert json.loads((tmp_path / "closed.json").read_text()) == ["n:0", "n:1"]

"""ROSE's settings, and the comparison of policies on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plexsvc.sim.rollout.coserved import Sharing
from plexsvc.sim.rollout.rose import LENT, PICTURE, compare_lending, draw_lending, lent_json

SMALL = replace(LENT["rose-8b-grpo"](), batch=16, steps=1)
SMALL = replace(SMALL, agents=replace(SMALL.agents, action_median=20, turns_median=3))


@pytest.mark.parametrize("name", LENT)
def test_every_setting_can_be_played(name: str) -> None:
    work = LENT[name]()
    assert work.name == name
    assert work.batch % work.group == 0
    assert work.serving.kv_tokens > work.agents.most_tokens
    assert work.lenders <= work.fleet


def test_a_comparison_is_json_and_a_picture(tmp_path: Path) -> None:
    found = compare_lending(SMALL, seed=1, policies=(Sharing.ALONE, Sharing.LENDING))
    told = json.loads(json.dumps(lent_json(found, preset=SMALL.name, seed=1)))
    assert told["policies"]["alone"]["speedup"] == 1
    assert set(told["policies"]) == {"alone", "lending"}
    draw_lending(tmp_path / PICTURE, found, objectives=SMALL.objectives, title="small")
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
